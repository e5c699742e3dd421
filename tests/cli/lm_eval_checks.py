"""Run by test_lm_eval.py in an environment with lm-evaluation-harness: prints its figures of local tasks as JSON.

lm_eval_checks.py MODEL_FOLDER HELLASWAG LAMBADA MULTIPLE_CHOICE, each a file of JSON lines
"""
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', HF_HOME='hf-home', TOKENIZERS_PARALLELISM='false')

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

model, hellaswag, lambada, multiple_choice = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
published = pathlib.Path(lm_eval.__file__).parent / 'tasks'

# The harness's own definitions, of other files.
DEFINITIONS = {
    'local_hellaswag': f'''
include: {published / 'hellaswag' / 'hellaswag.yaml'}
dataset_kwargs: {{data_files: {{train: {hellaswag}, validation: {hellaswag}}}}}''',
    'local_lambada': f'''
include: {published / 'lambada' / 'lambada_openai.yaml'}
dataset_kwargs: {{data_files: {{test: {lambada}}}}}''',
    'local_multiple_choice': f'''
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
dataset_kwargs: {{data_files: {{test: {multiple_choice}}}}}''',
}

folder = pathlib.Path('definitions')
folder.mkdir()
for name, definition in DEFINITIONS.items():
    (folder / f'{name}.yaml').write_text(f'task: {name}\ndataset_path: json\ndataset_name: null{definition}\n')
results = lm_eval.simple_evaluate(model='hf', model_args=f'pretrained={model},dtype=float32', tasks=list(DEFINITIONS),
                                  task_manager=TaskManager(include_path=str(folder)), device='cpu', batch_size=8,
                                  bootstrap_iters=0)['results']
print(json.dumps({task.removeprefix('local_'): {key.split(',')[0]: value for key, value in figures.items()
                                                if isinstance(value, (int, float))}
                  for task, figures in results.items()}))
