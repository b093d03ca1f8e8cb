#!/usr/bin/env bash
# A model from export to results, in a folder: docs/demo/demo.sh build/demo
# A small network is trained on scikit-learn's digits, dense and as Sparse Wide at the same multiply-accumulates, with
# three seeds each. ResNet-18 is timed and simulated. The last lines compare the results.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

run() {
  printf '\n$ %s\n' "$*"
  "$@"
}
sift() { run sift-onnx "$@"; }

cp "$here"/{digits.py,dense.yaml,rigl.yaml} .

printf '\n== Accuracy at the same cost\n'
run python digits.py 1 2 3
sift transform 1/dense.onnx 1/wide.onnx --wide 0.75 --seed 1 --json 1/transform.json --force
for seed in 2 3; do
  sift transform $seed/dense.onnx $seed/wide.onnx --wide 0.75 --seed $seed --force -q
done
for seed in 1 2 3; do
  quiet=$([ $seed = 1 ] || echo -q)
  for name in dense:dense wide:rigl; do
    sift train $seed/${name%:*}.onnx $seed/${name%:*}-trained.onnx --recipe ${name#*:}.yaml --data digits.py:digits \
      --seed $seed --threads 1 --json $seed/${name%:*}.json --force $quiet
  done
done
sift evaluate 1/wide-trained.onnx --data digits.py:held_out --baseline 1/dense-trained.onnx --backend cpu \
  --backend onnxruntime --json evaluate.json

printf '\n== Latency, on a CPU and on a simulated machine\n'
sift models export resnet18 resnet18.onnx --force
sift transform resnet18.onnx resnet18-wide.onnx --wide 0.9 --json transform.json --force
sift check resnet18-wide.onnx
sift benchmark resnet18-wide.onnx --baseline resnet18.onnx --backend cpu --backend onnxruntime --json benchmark.json
sift simulate resnet18-wide.onnx --batch 64 --baseline resnet18.onnx --json simulate.json

printf '\n== Results\n'
sift report 1/transform.json ?/dense.json ?/wide.json evaluate.json transform.json benchmark.json simulate.json \
  --model 1/wide-trained.onnx --html report.html --force
printf '\nThe page with charts: %s/report.html\n' "$PWD"
