//! Captured decode steps on Meta, where graphs are empty: a replayed step leaves every counter, peak and
//! event of the allocator as the computed step does.

use std::path::Path;

use collective::Communicator;
use config::RunConfig;
use device::{Description, Kind};
use nn::Stage;
use tensor::ops::choose::Choice;
use worker::dataset::DataScope;
use worker::{Placement, Setup, WorkerError};

use crate::{Generator, GeneratorOptions, Line};

const REST: &str = "[data]\nkind = \"synthetic\"\n[train]\nmicro_batch_size = 1\nglobal_batch_size = 1\n";
const GPT: &str =
    "[model]\nkind = \"gpt\"\nlayers = 3\nheads = 2\nwidth = 64\ncontext = 32\nvocabulary = 100\n";
const LLAMA: &str = "[model]\nkind = \"llama\"\nlayers = 2\nheads = 4\nkey_value_heads = 2\nwidth = 64\n\
                     context = 32\nvocabulary = 100\n";

/// Models with settings that affect a step's allocations, and repetition penalties.
const CASES: &[(&str, &[&str], f32)] = &[
    (GPT, &[], 1.0),
    (GPT, &["precision.compute=bf16", "memory.allocator=backend:native"], 1.5),
    (LLAMA, &["precision.compute=bf16", "memory.allocator=max_split_size_mb:20"], 1.0),
    (LLAMA, &["model.experts=4", "lora.rank=4", "precision.compute=bf16"], 1.2),
];
/// Lengths of the texts in three slots at each step. A text is new unless the previous step had it one token
/// shorter.
const STEPS: &[[usize; 3]] = &[
    [5, 0, 1],
    [6, 0, 2],
    [7, 0, 3],
    [8, 9, 4],
    [9, 10, 0],
    [10, 11, 0],
    [11, 2, 20],
    [12, 3, 21],
    [0, 4, 22],
    [0, 5, 23],
];

/// Returns a setup on a Meta device that imitates a GPU, with a long allocator history.
fn setup(text: &str, sets: &[&str]) -> Setup {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = RunConfig::parse(text, "test.toml", Path::new("/"), &sets).unwrap();
    let gpu = Description { kind: Kind::Cuda, compute_capability: (9, 0), ..Description::host() };
    let setup = Setup::new(config, Placement::Meta(gpu), DataScope::Shapes, |config, _, _| {
        Ok::<_, WorkerError>(vec![Stage::whole(config.layers())])
    });
    Setup { history: 1 << 20, ..setup.unwrap() }
}

fn generator(text: &str, sets: &[&str], penalty: f32, captures: bool) -> Generator {
    let setup = setup(&format!("{text}{REST}"), sets);
    let choice = Choice { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: penalty };
    let options = GeneratorOptions { slots: 3, capacity: 32, longest: 24, choice };
    let mut generator = Generator::new(&setup, Communicator::solo(), options, None).unwrap();
    generator.device().with_allocator(|allocator| allocator.start_digest());
    if captures {
        generator.graphs.capture_on_meta();
    }
    generator
}

/// Makes a step. Returns its tokens, the statistics after it, and a digest of its allocations and frees.
fn step(generator: &mut Generator, number: usize) -> (Vec<Vec<u32>>, String, u64) {
    let before = number.checked_sub(1).map_or([0; 3], |before| STEPS[before]);
    let tokens = [7; 32];
    let line = |(length, before): (usize, usize)| {
        let is_new = before + 1 != length || before == 0;
        let tokens = &tokens[..length];
        let seen = is_new.then_some(tokens);
        (length > 0).then_some(Line { tokens, is_new, seen, number: number as u32, key: [1, 2] })
    };
    let lines: Vec<_> = STEPS[number].into_iter().zip(before).map(line).collect();
    let chosen = generator.step(&[lines]).unwrap();
    let device = generator.device();
    let (digest, events, statistics) = device.with_allocator(|allocator| {
        (allocator.take_digest(), allocator.events().len(), allocator.statistics().clone())
    });
    (chosen, format!("{:?} {statistics:?} {events} {}", generator.bytes(), device.flops()), digest)
}

#[test]
fn replayed_steps_allocate_what_steps_allocate() {
    for (text, sets, penalty) in CASES {
        let mut generators = [false, true].map(|captures| generator(text, sets, *penalty, captures));
        for number in 0..STEPS.len() {
            let [plain, replayed] = generators.each_mut().map(|generator| step(generator, number));
            assert_eq!(replayed, plain, "step {number} of {sets:?}");
        }
        let [plain, replayed] = generators.each_ref().map(Generator::replayed_steps);
        // The first steps make their calls; new texts beside others move nothing.
        assert!(plain == 0 && (7..=9).contains(&replayed), "{replayed} replays of {sets:?}");
    }
}
