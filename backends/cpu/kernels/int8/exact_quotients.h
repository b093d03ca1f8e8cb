// When generated code may divide by multiplying with a reciprocal.
//
// Of a float v and a divisor b with the rounded reciprocal r, q = v r is off by less than 2^-22 of v / b. What it
// leaves over, e = v - q b, corrects it: q + e r, in one rounding, is the float nearest to (v / b) (1 + t), |t| <
// 2^-46. So it is rounded to another integer than the float nearest to v / b only if v / b is that near to a point
// midway between a float k + 1/2 and its neighbour.
#pragma once

namespace sift::cpu {

// Whether no float's quotient by `divisor` is that near to such a point of a magnitude up to 256. True for all but one
// in a thousand of divisors, between 2^-60 and 2^60.
bool divides_in_code(float divisor);

}  // namespace sift::cpu
