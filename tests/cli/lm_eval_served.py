"""Run by test_lm_eval.py in an environment with lm-evaluation-harness: prints, as JSON, the log-likelihoods that its models
`hf` (an exported folder) and `local-completions` (our server) give the same requests, each with whether it is greedy.

lm_eval_served.py MODELS REQUESTS, two files of JSON: {NAME: {"folder", "url", "context", "bos"}}, and [[context, continuation], ...]
"""
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', HF_HOME='hf-home', TOKENIZERS_PARALLELISM='false')

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

import lm_eval.models  # noqa: E402,F401  pylint: disable=unused-import

models, requests = (json.loads(pathlib.Path(argument).read_text()) for argument in sys.argv[1:])
instances = [Instance('loglikelihood', {}, tuple(request), i) for i, request in enumerate(requests)]
answers = {}
for name, model in models.items():
    of_folder = get_model('hf')(pretrained=model['folder'], dtype='float32', device='cpu', batch_size=4, add_bos_token=model['bos'])
    of_server = get_model('local-completions')(model=name, base_url=model['url'], tokenizer=model['folder'], batch_size=4,
                                               tokenizer_backend='huggingface', max_length=model['context'],
                                               add_bos_token=model['bos'])
    answers[name] = [each.loglikelihood(instances) for each in (of_folder, of_server)]
print(json.dumps(answers))
