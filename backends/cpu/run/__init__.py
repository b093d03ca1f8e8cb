"""How a plan runs: operators, schedules, scratch memory, programs and sessions."""
