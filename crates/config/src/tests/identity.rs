//! Tests of identities: which keys decide bits, which may change, and how configurations differ.

use super::*;
use std::collections::BTreeSet;

#[test]
fn the_fingerprint_does_not_depend_on_the_directory_of_the_data() {
    let base = parse(LEAST, &[]).unwrap().fingerprint();
    assert_eq!(base.len(), 64);
    assert_eq!(parse(LEAST, &["data.base=/elsewhere"]).unwrap().fingerprint(), base);
    assert_eq!(parse(LEAST, &["train.steps=300"]).unwrap().fingerprint(), base, "a default written out");
    assert_ne!(parse(LEAST, &["train.steps=301"]).unwrap().fingerprint(), base);
    assert_ne!(parse(LEAST, &["data.paths=['b.txt']"]).unwrap().fingerprint(), base);
}

#[test]
fn every_key_is_known_to_decide_bits_or_not() {
    let mut free = BTreeSet::new();
    let mut deciding = BTreeSet::new();
    for kinds in
        [&["parallel.schedule=interleaved"][..], &["model.kind=mlp", "data.kind=synthetic", "optim.kind=sgd"]]
    {
        let config = parse(LEAST, kinds).unwrap();
        let identity = config.identity();
        for (key, _) in config.settings() {
            let set = if identity.contains_key(key.path) { &mut deciding } else { &mut free };
            set.insert(key.path);
        }
        assert_eq!(identity["train.seed"], "1");
    }
    assert!(free.is_disjoint(&deciding));
    // A new key decides bits until it is listed here deliberately.
    let expected = [
        "checkpoint.every",
        "checkpoint.keep",
        "checkpoint.keep_best",
        "checkpoint.memory_steps",
        "checkpoint.minutes",
        "checkpoint.wait",
        "data.base",
        "data.cache",
        "data.full_hash",
        "data.paths",
        "data.prefetch",
        "data.validation_paths",
        "lora.from",
        "memory.allocator",
        "memory.empty_cache_every",
        "memory.history",
        "memory.limit_bytes",
        "memory.offload",
        "memory.offload_weights",
        "memory.preallocate",
        "memory.recompute",
        "memory.recompute_layers",
        // They decide how a run starts, which the checkpoint of a resumed run replaces.
        "model.from",
        "model.from_config",
        "model.resize_vocabulary",
        "optim.offload",
        "parallel.bucket_bytes",
        "parallel.chunks",
        "parallel.context",
        "parallel.data",
        "parallel.overlap",
        "parallel.partition",
        "parallel.peer_access",
        "parallel.peer_blocks",
        "parallel.pipeline",
        "parallel.prefetch",
        "parallel.profile",
        "parallel.schedule",
        "parallel.ranks_per_device",
        "parallel.shard",
        "parallel.tensor",
        "parallel.timeout_seconds",
        "parallel.zero_stage",
        "telemetry.device",
        "telemetry.every",
        "telemetry.hashes",
        "telemetry.listen",
        "telemetry.listen_publicly",
        "telemetry.tensorboard",
        // Averages change nothing that is trained.
        "train.ema",
        "train.ema_every",
        "train.ema_start",
        "train.graphs",
        "train.max_nonfinite_steps",
        // It decides nothing until a step runs out of memory; the session's record has both sizes.
        "train.on_out_of_memory",
        "train.patience",
        "train.validate_ema",
        "train.validate_every",
        "train.validation_micro_batches",
        "train.verify_every",
    ];
    assert_eq!(free, expected.into());
    let elsewhere =
        parse(LEAST, &["data.base=/elsewhere", "train.global_batch_size=32", "parallel.data=2"]).unwrap();
    assert_eq!(elsewhere.identity(), parse(LEAST, &["parallel.lanes=4"]).unwrap().identity());
}

/// A checkpoint of a version with other key names belongs to the same run, and changes are still found.
#[test]
fn an_identity_under_earlier_names_of_keys_is_understood() {
    let sets = ["train.micro_batch_size=10", "train.global_batch_size=80"];
    let config = parse(LEAST, &sets).unwrap();
    let here = config.identity();
    let earlier = |micro_batch: &str, micro_batches: &str| {
        let mut identity = here.clone();
        identity.remove("train.micro_batch_size").unwrap();
        identity.remove("train.global_batch_size").unwrap();
        identity.insert("train.micro_batch".to_owned(), micro_batch.to_owned());
        identity.insert("train.micro_batches".to_owned(), micro_batches.to_owned());
        let changes = config.changes_since(&identity).into_iter();
        changes.map(|change| format!("{}: {}", change.key, change.values())).collect::<Vec<_>>()
    };
    assert_eq!(config.changes_since(&here), []);
    assert!(earlier("10", "8").is_empty());
    assert_eq!(earlier("10", "4"), ["train.global_batch_size: 80 here, 40 in the checkpoint"]);
    assert_eq!(earlier("20", "4"), ["train.micro_batch_size: 10 here, 20 in the checkpoint"]);
}

/// A resumed run may change steps, learning rate, weight decay and clipping, but no setting that affects
/// every step. A key that an earlier version lacked has its default.
#[test]
fn some_keys_that_decide_bits_may_change() {
    let here = parse(LEAST, &[]).unwrap().identity();
    for (set, allowed) in [
        ("train.steps=9", true),
        ("optim.learning_rate=1e-2", true),
        ("optim.min_learning_rate=1e-5", true),
        ("optim.warmup_steps=3", true),
        ("optim.weight_decay=0.2", true),
        ("optim.clip_norm=0", true),
        ("optim.schedule=linear", true),
        ("optim.schedule=wsd", true),
        ("train.epochs=2", true),
        ("optim.beta1=0.8", false),
        ("train.seed=2", false),
        ("parallel.lanes=2", false),
    ] {
        let changes = parse(LEAST, &[set]).unwrap().changes_since(&here);
        assert!(changes.iter().all(|change| change.allowed == allowed) && !changes.is_empty(), "{set}");
    }
    let mut earlier = here.clone();
    earlier.remove("optim.clip_norm").unwrap();
    assert_eq!(parse(LEAST, &[]).unwrap().changes_since(&earlier), []);
    assert_eq!(parse(LEAST, &["optim.clip_norm=2"]).unwrap().changes_since(&earlier).len(), 1);
}

/// Paths of a mixture do not affect results, because its corpora have their own hash.
#[test]
fn differences_say_what_decides_bits() {
    let mixture = |source: &str| {
        let mixture = format!("data.mixture=[{{paths = ['a.txt']}}, {source}]");
        parse(LEAST, &[&mixture, "data.paths=[]"]).unwrap()
    };
    let first = mixture("{paths = ['b.txt']}");
    for (other, decides_bits) in [("{paths = ['c.txt']}", false), ("{paths = ['b.txt'], weight = 2}", true)] {
        let differences = first.differences_from(&mixture(other));
        let differences: Vec<_> =
            differences.iter().map(|(key, _, decides_bits)| (&**key, *decides_bits)).collect();
        assert_eq!(differences, [("data.mixture", decides_bits)], "{other}");
    }
    assert_eq!(first.differences_from(&first), []);
}
