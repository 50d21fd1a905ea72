//! Tests of quantized frozen weights: they equal bitsandbytes', and so do the losses.

use std::fs;

use device::{Category, Device, DeviceOptions, Float, bf16};
use inference::{EvaluateOptions, ExportOptions};
use safetensors::SafeTensors;
use serde_json::Value;
use tensor::ops::block_codes::{self, Alphabet, BlockCodes, Encoder};
use tensor::{DType, Tensor};
use worker::DeviceChoice;

use super::{evaluate, near, ten_steps};
use crate::common::golden;
use crate::common::runs::{config, train_in};
use crate::families::folder;

/// Alignment in bytes of a record's sections.
const ALIGNMENT: usize = 16;

fn words(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn codes_scales_and_values_are_those_of_bitsandbytes() {
    let bytes = fs::read(golden("block_codes.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    for name in ["short", "long"] {
        let recorded_part = |part: &str| recorded.tensor(&format!("{name}.{part}")).unwrap();
        let (x, shape) = (recorded_part("x"), recorded_part("x").shape().to_vec());
        let values: Vec<_> =
            x.data().as_chunks().0.iter().map(|word| bf16::from_le_bytes(*word).to_f32()).collect();
        let codes = BlockCodes::new(Alphabet::Nf4, [shape[0], shape[1]], &[shape[0]]).unwrap();
        let mut encoder = Encoder::new(&codes);
        values.chunks(192).for_each(|piece| encoder.push(piece));
        let record = encoder.finish();

        let scales = values.len() / 2;
        assert!(record[..scales] == *recorded_part("codes").data(), "{name}");
        let groups = (scales + values.len() / 64).next_multiple_of(ALIGNMENT);
        assert_eq!(record[scales..][..values.len() / 64], *recorded_part("scales").data(), "{name}");
        let [most, mean] = ["most", "mean"].map(|part| words(recorded_part(part).data()));
        for (group, own) in words(&record[groups..]).chunks(2).zip(&most) {
            // The mean of scales is summed in another order.
            assert!((group[0] - own).abs() <= 1e-6 * own && (group[1] - mean[0]).abs() <= 1e-6 * mean[0]);
        }
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let record = Tensor::from_host(&device, &record, [record.len()], Category::Parameter).unwrap();
        let decoded = block_codes::decode(&record, &codes, DType::F32).unwrap().to_vec::<f32>().unwrap();
        let expected = words(recorded_part("decoded").data());
        assert!(
            decoded
                .iter()
                .zip(&expected)
                .all(|(own, expected)| (own - expected).abs() <= 1e-6 * expected.abs())
        );
        let rounded = block_codes::decode(&record, &codes, DType::Bf16).unwrap().to_vec::<bf16>().unwrap();
        assert!(rounded.iter().zip(&decoded).all(|(half, wide)| *half == <bf16 as Float>::from_f32(*wide)));
    }
}

/// Checks that runs with a quantized base have the losses of bitsandbytes' weights, resume on other grids,
/// and are merged into the weights with which they computed.
#[test]
fn runs_beside_a_base_in_codes_have_the_losses_of_bitsandbytes() {
    let recorded: Value = serde_json::from_slice(&fs::read(golden("block_codes.json")).unwrap()).unwrap();
    for (name, expected) in recorded.as_object().unwrap() {
        let name = format!("models/{name}");
        // The other formats are tested on one model.
        for base in if name.ends_with("llama") { &["nf4", "int4", "fp8"][..] } else { &["nf4"] } {
            let directory = tempfile::tempdir().unwrap();
            let at = |part: &str| directory.path().join(part);
            let base = format!("lora.base={base}");
            let sets = ["lora.rank=4", &base, "train.steps=2", "checkpoint.every=1"];
            let train = |run_dir: &str, more: &[&str]| {
                let config = config(&ten_steps(&name), &[&sets[..], more].concat());
                train_in(&at(run_dir), config, DeviceChoice::Cpu).unwrap().summary
            };
            let summary = train("run", &[]);
            let loss = f64::from(summary.losses[0]);
            let kind = base.rsplit('=').next().unwrap();
            match kind {
                "nf4" => assert!(near(loss, &expected["nf4"], 1e-5), "{name}: {loss}, {expected}"),
                // Not bitsandbytes' format: E4M3 is closer to the model than 4 bits.
                _ => assert!(near(loss, &expected["plain"], if kind == "fp8" { 1e-3 } else { 5e-3 })),
            }
            let grid = ["parallel.data=2", "parallel.zero_stage=3", "parallel.pipeline=2"];
            assert_eq!(train("grid", &grid).weights_sha256, summary.weights_sha256, "{name} {base}");

            let of_run = evaluate(EvaluateOptions { model: at("run"), ..Default::default() }).unwrap();
            let options =
                ExportOptions { model: at("run"), output: at("merged"), merge: true, ..Default::default() };
            inference::export(&options).unwrap();
            let data = vec![folder(&name).join("tokens.bin").display().to_string()];
            let options =
                EvaluateOptions { model: at("merged"), data, context: Some(96), ..Default::default() };
            let merged = evaluate(options).unwrap();
            assert!((merged.loss - of_run.loss).abs() <= 1e-5 * of_run.loss, "{merged}, {of_run}");
        }
    }
}
