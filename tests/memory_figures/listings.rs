//! Compares the figures of `plimsoll memory` with PyTorch's.

use device::{Device, DeviceOptions};

use crate::common;

/// Checks that every figure equals PyTorch's. Kept graphs grow by the same bytes each; consumed graphs do not
/// grow.
#[test]
fn listings_have_pytorchs_figures() {
    let gpu = plan::PlanDevice::shipped().unwrap().description(plan::DeviceRanks::ALONE);
    let gpu = Device::meta(0, gpu, &DeviceOptions::default()).unwrap();
    for device in common::devices::all().into_iter().chain([gpu]) {
        for listing in bench::memory_listings(&device).unwrap() {
            for figure in &listing.figures {
                assert!(figure.agrees(), "{device:?}, {}: {figure:?}", listing.title);
            }
            let grown: Vec<u64> = listing
                .figures
                .iter()
                .filter(|figure| figure.what.ends_with("kept"))
                .map(|figure| figure.allocated)
                .collect();
            assert!(grown.iter().zip(1..).all(|(bytes, number)| *bytes == number * grown[0]), "{grown:?}");
            assert!(grown.first().is_none_or(|bytes| *bytes > 57_344), "{grown:?}");
        }
    }
}

/// Returns the bytes at one moment of a PyTorch recording.
fn recorded(rows: &serde_json::Value, moment: &str) -> u64 {
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|row| row[0] == moment).unwrap_or_else(|| panic!("no moment {moment}"));
    row[1]["allocated"].as_u64().unwrap()
}

/// Checks that figures marked as measured are in a recording, and that printed figures agree with recorded
/// ones.
#[test]
fn measured_figures_are_recorded() {
    let text = std::fs::read_to_string(common::golden("pytorch_listings.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let listings = bench::memory_listings(&common::devices::all()[0]).unwrap();
    let pytorch = |number: usize| -> Vec<(u64, Option<u64>)> {
        let rows = listings[number].figures.iter().filter_map(|figure| figure.pytorch);
        rows.map(|figures| (figures.allocated, figures.reserved)).collect()
    };
    let pairs = |key: &str| -> Vec<(u64, Option<u64>)> {
        let rows = golden[key].as_array().unwrap().iter();
        rows.map(|row| (row["allocated"].as_u64().unwrap(), row["reserved"].as_u64())).collect()
    };
    // The recording has no row between the second tensor and the emptied cache.
    let two = pytorch(0);
    assert_eq!([two[0], two[1], two[3]].as_slice(), pairs("two_tensors"));
    assert_eq!(pytorch(1), pairs("aliases"));
    let allocated = |number: usize, what: &str| {
        let row = listings[number].figures.iter().find(|figure| figure.what.contains(what)).unwrap();
        row.pytorch.unwrap().allocated
    };
    let five = &golden["five_layers"];
    assert_eq!(allocated(4, "inputs and targets"), recorded(five, "inputs"));
    assert_eq!(allocated(4, "and the network"), recorded(five, "model"));
    // The first epoch also allocates cuBLAS's workspaces.
    let forward = recorded(five, "1.forward") - recorded(five, "1.zero_grad");
    assert_eq!(allocated(4, "bytes of blocks"), forward);
    assert_eq!(allocated(4, "after the forward pass"), recorded(five, "model") + forward);
    let ten = &golden["ten_epochs"];
    let model = recorded(ten, "model");
    assert_eq!(allocated(6, "growth with the network"), model - recorded(ten, "inputs"));
    for (ours, theirs) in [
        (": forward", "forward"),
        (": loss", "loss"),
        (": backward", "backward"),
        (": step", "step"),
        ("dropped", "released"),
    ] {
        for epoch in 0..10 {
            assert_eq!(allocated(6, ours), recorded(ten, &format!("{epoch}.{theirs}")) - model, "{ours}");
        }
    }
}
