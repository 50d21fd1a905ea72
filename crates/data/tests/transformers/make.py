"""Makes tokenizers and chat templates of the kinds that model folders have, and what transformers make of
prompts and conversations with them: make.py CONVERSATIONS.jsonl OUT."""

import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|start|>", "<|end|>", "[INST]", "[/INST]"]

CHATML = """
{%- if messages[0].role == 'system' %}
    {{- '<|start|>system\\n' + messages[0].content + '<|end|>\\n' }}
{%- else %}
    {{- '<|start|>system\\nBe brief.<|end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, users=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{% set ns.users = ns.users + 1 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|start|>' ~ message.role ~ '\\n' ~ content ~ '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
{%- endif %}
"""

HEADERS = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '</s>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

INSTRUCTIONS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- if loop.last %}
            {{- " " + message["content"]|trim + eos_token }}
        {%- else %}
            {{- " " + message["content"] + eos_token }}
        {%- endif %}
    {%- else %}
        {{- raise_exception("only user and assistant") }}
    {%- endif %}
{%- endfor %}
"""

MARKED = """{% macro head(role) -%}
<|start|>{{ role | upper }}
{% endmacro %}
{% for message in messages %}
{% if message['role'] == 'assistant' %}
{{ head('model') }}{% generation %}{{ message['content'] }}<|end|>
{% endgeneration %}

{% else %}
{{ head(message.role) }}{{ message | tojson }}<|end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ head('model') }}{% endif %}"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "instructions": INSTRUCTIONS, "marked": MARKED}


def byte_level(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def sentence_pieces(lines):
    """As Llama 2 has it: a mark for a space before every text, and bytes for unknown characters."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    special = ["<unk>"] + SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, special_tokens=special))
    # Bytes are no special tokens.
    described = json.loads(trained.to_str())
    described["added_tokens"] = [one for one in described["added_tokens"] if not one["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(described))


def first(tokenizer):
    return processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                         special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])


def main():
    lines, out = [json.loads(line) for line in open(sys.argv[1])], sys.argv[2]
    texts = [message["content"] for line in lines for message in line["messages"]]
    kinds = {
        "first": (byte_level, first, {}),
        "told": (byte_level, lambda _: processors.ByteLevel(trim_offsets=True), {"add_bos_token": True}),
        "untold": (byte_level, first, {"add_bos_token": False}),
        "both": (byte_level, lambda _: None, {"add_bos_token": True, "add_eos_token": True}),
        "plain": (byte_level, lambda _: processors.ByteLevel(trim_offsets=True), {}),
        "nothing": (byte_level, lambda _: None, {}),
        "pieces": (sentence_pieces, first, {}),
    }
    prompts = texts + ["", " a", "<|start|>user\nWhat?<|end|>", "</s> é€😀 <s>"]
    expected = {}
    for name, (make, process, told) in kinds.items():
        tokenizer = make(texts)
        if (processor := process(tokenizer)) is not None:
            tokenizer.post_processor = processor
        folder = os.path.join(out, name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
        at = os.path.join(folder, "tokenizer_config.json")
        config = {key: value for key, value in json.load(open(at)).items() if key not in ("add_bos_token", "add_eos_token")}
        json.dump(config | told, open(at, "w"))
        loaded = AutoTokenizer.from_pretrained(folder)
        expected[name] = {"prompts": [[prompt, loaded.encode(prompt)] for prompt in prompts], "chats": {}}
        if name not in ("first", "pieces"):
            continue
        for title, template in TEMPLATES.items():
            # The day is an argument of these templates.
            more = {"date_string": "26 Jul 2024", "chat_template": template}
            chats = []
            for line in lines:
                messages = line["messages"]
                rendered = loaded.apply_chat_template(messages, tokenize=True, return_dict=True,
                                                      return_assistant_tokens_mask=title == "marked", **more)
                question = loaded.apply_chat_template(messages[-2:-1], tokenize=True, return_dict=True,
                                                      add_generation_prompt=True, **more)
                chats.append({"tokens": rendered["input_ids"], "answers": rendered.get("assistant_masks"),
                              "text": loaded.apply_chat_template(messages, tokenize=False, **more),
                              "question": question["input_ids"]})
            expected[name]["chats"][title] = chats
            copy = os.path.join(out, f"{name}-{title}")
            os.makedirs(copy)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                open(os.path.join(copy, file), "w").write(open(os.path.join(folder, file)).read())
            open(os.path.join(copy, "chat_template.jinja"), "w").write(template)
    json.dump(expected, open(os.path.join(out, "expected.json"), "w"))


main()
