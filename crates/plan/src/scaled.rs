//! Descriptions scaled to another GPU of the same model.
//!
//! Two H200s took the same time for eight steps within 0.6 %. A GPU with a lower power limit or less cooling
//! takes longer.

use std::collections::BTreeMap;

use crate::imitated::PlanDevice;
use crate::samples::MeasuredCalls;

/// The ratio of a class of calls' seconds on a GPU to those in a description.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassRatio {
    /// Name of the class.
    pub class: &'static str,
    /// Seconds on the GPU over seconds in the description.
    pub ratio: f64,
    /// Seconds of the calls that were compared.
    pub seconds: f64,
}

impl ClassRatio {
    /// Largest difference that says nothing: on six H200s, calls one after another took 0.5 to 4.5 % longer
    /// than described, and steps as long as predicted (`benches/notes/predictions.md`).
    const NOISE: f64 = 0.05;

    /// Returns whether the difference is too small to tell from an error of measurement, so that the class
    /// keeps its described times.
    #[must_use]
    pub fn is_noise(&self) -> bool {
        self.class != LINK && (self.ratio - 1.0).abs() <= Self::NOISE
    }
}

impl PlanDevice {
    /// Returns the description with the seconds of each class of calls multiplied by the ratio of `measured`
    /// to described seconds, and the ratios. Only calls with the same kind and size are compared. Classes
    /// without such calls are unchanged, and classes whose ratio is noise. `host_copy` is the measured rate
    /// of copies between host and device, in bytes per second.
    #[must_use]
    pub fn scaled(mut self, measured: &[MeasuredCalls], host_copy: f64) -> (Self, Vec<ClassRatio>) {
        let mut classes: BTreeMap<&'static str, [f64; 2]> = BTreeMap::new();
        for MeasuredCalls { call, samples } in measured {
            let Some(class) = class_of(call) else { continue };
            let described = self.times.iter().filter(|calls| calls.call == *call);
            let described: Vec<&[f64; 4]> = described.flat_map(|calls| &calls.samples).collect();
            for [a, b, c, seconds] in samples {
                if let Some(same) = described.iter().find(|sample| sample[..3] == [*a, *b, *c]) {
                    let [here, there] = classes.entry(class).or_default();
                    *here += seconds;
                    *there += same[3];
                }
            }
        }
        let ratio = |(class, [seconds, described]): (&'static str, [f64; 2])| ClassRatio {
            class,
            ratio: seconds / described,
            seconds,
        };
        let mut ratios: Vec<_> = classes.into_iter().map(ratio).collect();
        if let Some(rate) = self.rates.as_mut().and_then(|rates| rates.host_copy_bytes.as_mut()) {
            ratios.push(ClassRatio { class: LINK, ratio: *rate / host_copy, seconds: 0.0 });
            *rate = host_copy;
        }
        for calls in &mut self.times {
            let class = class_of(&calls.call);
            let own = ratios.iter().find(|ratio| Some(ratio.class) == class);
            let ratio = own.filter(|own| !own.is_noise()).map_or(1.0, |own| own.ratio);
            calls.samples.iter_mut().for_each(|[.., seconds]| *seconds *= ratio);
        }
        (self, ratios)
    }
}

/// Returns the class of a kind of calls; `None` for calls between ranks or of the host. Single dtypes are no
/// classes: a minute's measurements of one differ by more than GPUs do.
fn class_of(kind: &str) -> Option<&'static str> {
    match kind.split_whitespace().next()? {
        _ if kind == "copy" || kind == "zero" => Some(MEMORY),
        _ if kind == "copy from pool" || kind == "copy to pool" => Some(LINK),
        "matmul" | "convolution" => Some(POWER),
        word if word.starts_with("attention") => Some(POWER),
        word if word.contains('.') => Some(MEMORY),
        _ => None,
    }
}

/// Class of calls that power and clocks bound.
const POWER: &str = "matmuls, convolutions and attention";
/// Class of calls that the link to the host bounds.
const LINK: &str = "copies between host and device";
/// Class of calls that the memory's rate bounds.
const MEMORY: &str = "other kernels";

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(call: &str, samples: &[[f64; 4]]) -> MeasuredCalls {
        MeasuredCalls { call: call.to_owned(), samples: samples.into() }
    }

    #[test]
    fn classes_are_scaled_by_the_calls_that_both_have() {
        let device = |times| {
            let mut device = PlanDevice::of_model("NVIDIA H200").unwrap().unwrap();
            device.rates.as_mut().unwrap().host_copy_bytes = Some(40e9);
            device.times = times;
            device
        };
        let (nt, tn) =
            ("matmul nt bf16,bf16,bf16 set plain 256", "matmul tn bf16,bf16,bf16 add plain 256 odd");
        let described = device(vec![
            calls(nt, &[[1.0, 1.0, 1.0, 10.0], [2.0, 1.0, 1.0, 30.0]]),
            calls(tn, &[[1.0, 1.0, 1.0, 5.0]]),
            calls("copy from host", &[[1.0, 1.0, 1.0, 1.0]]),
            calls("add.add_bf16 0", &[[1.0, 1.0, 1.0, 2.0]]),
            calls("convolution bf16 forward 1x1 2", &[[1.0, 1.0, 1.0, 7.0]]),
            calls("copy to pool", &[[1.0, 1.0, 1.0, 4.0]]),
        ]);
        let measured = [
            calls(nt, &[[1.0, 1.0, 1.0, 12.0], [3.0, 1.0, 1.0, 99.0]]),
            calls(tn, &[[1.0, 1.0, 1.0, 6.0]]),
            calls("add.add_bf16 0", &[[1.0, 1.0, 1.0, 2.03]]),
            calls("copy from host", &[[1.0, 1.0, 1.0, 9.0]]),
        ];
        let (scaled, ratios) = described.scaled(&measured, 50e9);
        let seconds: Vec<f64> =
            scaled.times.iter().flat_map(|calls| &calls.samples).map(|[.., seconds]| *seconds).collect();
        for (seconds, expected) in seconds.iter().zip([12.0, 36.0, 6.0, 1.0, 2.0, 8.4, 3.2]) {
            assert!((seconds - expected).abs() < 1e-9, "{seconds} {expected}");
        }
        let ratios: Vec<_> = ratios.iter().map(|ratio| (ratio.class, ratio.seconds)).collect();
        assert_eq!(ratios, [(POWER, 18.0), (MEMORY, 2.03), (LINK, 0.0)]);
        assert_eq!(scaled.rates.unwrap().host_copy_bytes, Some(50e9));
    }
}
