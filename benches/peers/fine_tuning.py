"""Fine-tuning with TRL and PEFT, or with Unsloth: tokens a second and peak memory.

python3 benches/peers/fine_tuning.py make DIR --shape qwen3-1.7b|llama-3.1-8b|tiny
    writes DIR/model, a Hugging Face folder of that shape with random weights in bf16, and
    DIR/conversations.jsonl, 2,000 made conversations.
python3 benches/peers/fine_tuning.py train DIR [--packing] [--batch N] [--length N] [--checkpointing] [--unsloth]
    trains adapters of rank 16 on all linear layers, and prints a line of JSON.
"""

import argparse
import json
import os
import random
import time

SHAPES = {
    "tiny": ("qwen3", dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, head_dim=16, vocab_size=4096, tie_word_embeddings=True)),
    "qwen3-1.7b": ("qwen3", dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
                                 num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                                 vocab_size=151936, tie_word_embeddings=True, rope_theta=1e6,
                                 max_position_embeddings=40960)),
    "llama-3.1-8b": ("llama", dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                   num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                                   tie_word_embeddings=False, rope_theta=5e5,
                                   max_position_embeddings=131072)),
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts(count, seed=1):
    """Conversations of two messages whose lengths are spread as those of instructions: short ones, and a few long."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 9))) for _ in range(2000)]
    for _ in range(count):
        length = min(int(draw.lognormvariate(4.6, 0.8)) + 8, 1400)
        question = " ".join(draw.choice(words) for _ in range(max(length // 4, 3)))
        answer = " ".join(draw.choice(words) for _ in range(max(length - length // 4, 3)))
        yield [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def make(args):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    os.makedirs(args.dir, exist_ok=True)
    folder = os.path.join(args.dir, "model")
    kind, sizes = SHAPES[args.shape]
    conversations = list(texts(2000))
    with open(os.path.join(args.dir, "conversations.jsonl"), "w") as file:
        for messages in conversations:
            file.write(json.dumps({"messages": messages}) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((m["content"] for c in conversations for m in c), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    config = AutoConfig.for_model(kind, **sizes)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


def load(args, folder):
    """The model for training: with `--unsloth`, with its adapters and kernels."""
    import torch

    if not args.unsloth:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=args.attention)
        return model.cuda()
    from unsloth import FastLanguageModel

    model, _ = FastLanguageModel.from_pretrained(folder, max_seq_length=args.length, dtype=torch.bfloat16,
                                                 load_in_4bit=False)
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16, lora_dropout=0, bias="none",
                                            target_modules=modules,
                                            use_gradient_checkpointing="unsloth" if args.checkpointing else False)


def train(args):
    if args.unsloth:
        import unsloth  # noqa: F401, which changes the libraries that are imported after it.
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    folder = os.path.join(args.dir, "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load(args, folder)
    with open(os.path.join(args.dir, "conversations.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    counted = {"tokens": 0, "positions": 0, "from": 0.0, "steps": 0}

    class Clock(TrainerCallback):
        def on_step_end(self, args_, state, control, **_):
            torch.cuda.synchronize()
            if state.global_step == args.warm_up:
                counted.update(tokens=0, positions=0, **{"from": time.perf_counter()})
            counted["to"] = time.perf_counter()

    config = SFTConfig(
        output_dir=os.path.join(args.dir, "out"), per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=max(1, args.sequences // args.batch), max_steps=args.warm_up + args.steps,
        max_length=args.length, packing=args.packing, bf16=True, gradient_checkpointing=args.checkpointing,
        learning_rate=2e-4, logging_steps=1000, report_to=[], save_strategy="no", dataloader_num_workers=2,
    )
    adapters = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
                         peft_config=None if args.unsloth else adapters, callbacks=[Clock()])
    inner = trainer.training_step

    def training_step(model, inputs, *more):
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask")
        counted["positions"] += ids.numel()
        counted["tokens"] += int(mask.sum()) if mask is not None else ids.numel()
        return inner(model, inputs, *more)

    trainer.training_step = training_step
    torch.cuda.reset_peak_memory_stats()
    result = trainer.train()
    seconds = counted["to"] - counted["from"]
    print(json.dumps({
        "tokens_per_second": round(counted["tokens"] / seconds), "padding": round(1 - counted["tokens"] / counted["positions"], 3),
        "step_seconds": round(seconds / args.steps, 4), "peak_allocated_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "peak_reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2), "loss": round(result.training_loss, 4),
        "unsloth": args.unsloth, "packing": args.packing, "batch": args.batch, "length": args.length, "checkpointing": args.checkpointing,
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "train"])
    parser.add_argument("dir")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--unsloth", action="store_true")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    args = parser.parse_args()
    (make if args.command == "make" else train)(args)


if __name__ == "__main__":
    main()
