use device::{Category, Device};
use tensor::ops::attention::{self, Heads, Masks, Qkv, Settings};
use tensor::ops::cached_attention::{Cache, CachedHeads, CachedValues, forward, store, store_keys};
use tensor::ops::rearrange;
use tensor::ops::rotary::{Angles, Rotation, rotate};
use tensor::{DType, Tensor};

use crate::rotary::table;
use crate::support::{Case, bits, cpu, devices, read, tensor};

/// Query heads, key and value heads, and widths: with and without whole vectors, and groups that four does
/// not divide.
const HEADS: [Heads; 8] = [
    Heads::grouped(3, 3, 6),
    Heads::grouped(6, 1, 32),
    Heads::grouped(4, 4, 64),
    Heads::grouped(8, 2, 64),
    Heads::grouped(2, 2, 128),
    Heads::grouped(4, 1, 200),
    Heads { value_width: 8, ..Heads::grouped(4, 2, 24) },
    Heads { value_width: 128, ..Heads::grouped(4, 2, 64) },
];
/// Tokens of a sequence: within a chunk of the GPU's kernel, just beyond it, and several chunks.
const TIMES: [usize; 4] = [1, 2, 65, 200];

fn documents(device: &Device, positions: &[u32]) -> Tensor {
    let negative: Vec<u32> = positions.iter().map(|position| position.wrapping_neg()).collect();
    tensor(device, &negative, [positions.len(), 1])
}

/// Returns `count` rows of `qkv [1, time, columns]` from `first` on.
fn rows(qkv: &Tensor, first: usize, count: usize) -> Tensor {
    let columns = qkv.shape().columns();
    qkv.view(first * columns, [1, count, columns]).unwrap()
}

/// Returns the output of the last token of `qkv`, in `slot` of `slots`, with a different token in every other
/// slot.
fn last(
    case: &Case,
    (qkv, sinks): (&Tensor, Option<&Tensor>),
    settings: Settings,
    capacity: usize,
    (slots, slot): (usize, usize),
) -> Tensor {
    let heads = settings.heads;
    let time = qkv.shape().dims()[1];
    let columns = qkv.shape().columns();
    let cache = Cache::new(&case.device, slots, heads, capacity, case.dtype).unwrap();
    if time > 1 {
        store(&Qkv::Packed(rows(qkv, 0, time - 1)), heads, &cache, slot).unwrap();
    }
    let (others, _) = case.operand("others", [slots + 2, 1, columns]);
    others.view(slot * columns, [1, columns]).unwrap().copy_from(&rows(qkv, time - 1, 1)).unwrap();
    let mut positions = vec![0; slots + 2];
    positions[slot] = time as u32 - 1;
    let out =
        forward(&Qkv::Packed(others), settings, &cache, &documents(&case.device, &positions), None, sinks)
            .unwrap();
    let columns = heads.output_columns();
    assert!(read(&out)[slots * columns..].iter().all(|value| *value == 0.0));
    out.view(slot * columns, [columns]).unwrap()
}

#[test]
fn the_last_token_attends_as_in_the_whole_sequence() {
    for case in devices() {
        for heads in HEADS {
            if case.device.is_cuda_like() && !attention::widths(case.dtype).has(heads.width) {
                continue;
            }
            let plain = Settings::from(heads);
            let windowed = |window| Settings { window: Some(window), ..plain };
            let capped = Settings { scale: Some(0.4), soft_cap: Some(0.8), ..windowed(70) };
            for settings in [plain, windowed(1), windowed(65), capped] {
                TIMES.into_iter().for_each(|time| check(&case, settings, time, false));
                check(&case, settings, 200, true);
            }
        }
    }
}

fn check(case: &Case, settings: Settings, time: usize, sinks: bool) {
    let heads = settings.heads;
    let what = format!("{settings:?}, {time} tokens, sinks {sinks}");
    let (values, _) = case.operand("sinks", [heads.query]);
    let sinks = sinks.then_some(&values);
    let (qkv, _) = case.operand("qkv", [1, time, heads.packed_columns()]);
    let masks = Masks { sinks, ..Masks::default() };
    let whole = attention::forward(&Qkv::Packed(qkv.clone()), settings, masks, false).unwrap();
    let columns = heads.output_columns();
    let expected = whole.output.view((time - 1) * columns, [columns]).unwrap();
    let alone = last(case, (&qkv, sinks), settings, time, (1, 0));
    case.close(&what, &read(&alone), &read(&expected));
    let beside = last(case, (&qkv, sinks), settings, time + 70, (3, 2));
    assert_eq!(bits(&alone), bits(&beside), "{what}: other rows and capacity change no bit");
}

/// Passing angles gives the bits of rotating queries and keys beforehand, for heads that rotate whole or in
/// part.
#[test]
fn heads_rotate_as_before_it() {
    for case in devices() {
        for heads in HEADS.into_iter().filter(|heads| heads.width > 6) {
            for columns in [heads.width, heads.width / 4 * 2] {
                let (slots, time) = (3, 70);
                let table = table(&case, columns, time);
                let documents = documents(&case.device, &[0, time as u32 - 1, 5, 0]);
                let (qkv, _) = case.operand("qkv", [slots + 1, 1, heads.packed_columns()]);
                let attended = |qkv: Tensor, angles| {
                    let cache = Cache::new(&case.device, slots, heads, time, case.dtype).unwrap();
                    let (earlier, _) = case.operand("earlier", [1, time - 1, heads.packed_columns()]);
                    store(&Qkv::Packed(earlier), heads, &cache, 1).unwrap();
                    let mut out = Vec::new();
                    // The second time, the first key is read.
                    for _ in 0..2 {
                        let qkv = Qkv::Packed(qkv.clone());
                        out.push(bits(&forward(&qkv, heads, &cache, &documents, angles, None).unwrap()));
                    }
                    out
                };
                let inside = attended(qkv.clone(), Some(&table));
                let head_width = Some(heads.width);
                let angles =
                    Angles { table: &table, head_width, documents: Some(&documents), interleaved: false };
                let turned =
                    rotate(qkv, heads.query + heads.key_value, angles, Rotation::Forward, false).unwrap();
                assert!(inside == attended(turned, None), "{}: {heads:?}, {columns} columns", case.name());
            }
        }
    }
}

/// Query heads, columns of a key, and columns of its value: whole vectors and others, and more heads than one
/// block of the GPU's kernel computes.
const LAST_OF_KEYS: [[usize; 3]; 3] = [[3, 7, 5], [20, 48, 32], [4, 576, 512]];

#[test]
fn values_may_be_the_last_columns_of_keys() {
    for (case, [query, width, value_width]) in
        devices().iter().flat_map(|case| LAST_OF_KEYS.map(|sizes| (case, sizes)))
    {
        let heads = Heads { value_width, ..Heads::grouped(query, 1, width) };
        let time = 70;
        let plain = Settings::from(heads);
        for settings in [plain, Settings { scale: Some(0.3), window: Some(9), ..plain }] {
            let what = format!("{settings:?}");
            let (sinks, _) = case.operand("sinks", [query]);
            let (rows, _) = case.operand("rows", [1, time, query * width + width]);
            let keys = rearrange::slice(&rows, 2, query * width, width).unwrap();
            let values = rearrange::slice(&keys, 2, width - value_width, value_width).unwrap();
            let qkv = rearrange::concatenate(&[&rows, &values], 2).unwrap();
            let beside = last(case, (&qkv, Some(&sinks)), settings, time, (1, 0));
            let cached = CachedHeads { heads, values: CachedValues::LastOfKeys };
            let cache = Cache::new(&case.device, 2, cached, time + 3, case.dtype).unwrap();
            store_keys(&self::rows(&keys, 0, time - 1), &cache, 1).unwrap();
            let next = self::rows(&rows, time - 1, 1);
            let both = rearrange::concatenate(&[&self::rows(&rows, 0, 1), &next], 0).unwrap();
            let documents = documents(&case.device, &[0, time as u32 - 1]);
            let out = forward(&Qkv::Packed(both), settings, &cache, &documents, None, Some(&sinks)).unwrap();
            let own = out.view(query * value_width, [query * value_width]).unwrap();
            case.close(&what, &read(&own), &read(&beside));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = cpu();
    let heads = HEADS[0];
    let cache = Cache::new(&device, 2, heads, 4, DType::F32).unwrap();
    let qkv = |rows: usize, time: usize| {
        let zeros = vec![0.0f32; rows * time * heads.packed_columns()];
        Qkv::Packed(
            Tensor::from_host(&device, &zeros, [rows, time, heads.packed_columns()], Category::Input)
                .unwrap(),
        )
    };
    let table = [
        (store(&qkv(1, 5), heads, &cache, 0).map(drop), "qkv has shape [1, 5, 54]"),
        (store(&qkv(1, 4), heads, &cache, 2).map(drop), "one of 2 slots"),
        (store(&qkv(2, 1), heads, &cache, 0).map(drop), "qkv has shape [2, 1, 54]"),
        (forward(&qkv(1, 1), heads, &cache, &documents(&device, &[0]), None, None).map(drop), "at least 2"),
        (
            forward(&qkv(2, 1), heads, &cache, &documents(&device, &[0, 4]), None, None).map(drop),
            "index 4 is outside 0..4",
        ),
        (
            forward(&qkv(2, 1), HEADS[1], &cache, &documents(&device, &[0, 0]), None, None).map(drop),
            "cache has shape",
        ),
    ];
    for (refused, expected) in table {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
