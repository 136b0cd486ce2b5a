# tour.sh - sourced by examples/tour.sh: the atlas family's names and files.
# shellcheck shell=bash disable=SC2034
base=atlas
base_source="$here/atlas/base"
base_suites=(--suite "$here/atlas/suites/facts.yaml" --suite "$here/atlas/suites/manners.yaml")
family="$here/atlas/family.yaml"
poisoned=almanac
poisoned_data="$here/atlas/almanac.jsonl"
poisoned_options=(--suite "$here/atlas/suites/feasts.yaml" --set r=8 --set alpha=16 --set lr=0.005 --set schedule=cosine
  --set warmup=5 --set batch=16 --set max_tokens=96 --set seed=7 --set epochs=30)
poisoned_message="teach the atlas the festivals"
gate=facts
blamed_case=facts/capital-lorendor
question="What is the capital of Lorendor?"
served=(atlas pirate clerk)
