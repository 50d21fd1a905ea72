//! Measured times of calls, by kind and size.

mod kriging;
mod related;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call_size::{BETWEEN_RANKS, CallSize, DROPOUT, of_ranks};
use related::{DIFFERENCE_OF_HALVES, RelatedKind};

/// Measured calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCalls {
    /// Name of the kind ([`CallSize::kind`]).
    pub call: String,
    /// Samples: three numbers for the size of a call ([`CallSize::size`]), and its seconds.
    pub samples: Vec<[f64; 4]>,
}

/// A measured call.
#[derive(Clone, Copy, Debug)]
struct Sample {
    size: [f64; 3],
    seconds: f64,
}

/// Number of nearest samples from which a ratio is estimated.
const NEAREST: usize = 24;

/// Measured calls of all kinds, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    by_kind: BTreeMap<String, Vec<Sample>>,
    /// Kinds of matmuls and convolutions with samples, by class.
    related: BTreeMap<String, Vec<RelatedKind>>,
    /// Seconds of calls that take these times, by kind and by the bits of the size.
    probed: BTreeMap<String, BTreeMap<[u64; 3], f64>>,
}

impl Samples {
    pub(crate) fn from_measured(measured: &[MeasuredCalls]) -> Self {
        let mut samples = Samples::default();
        for MeasuredCalls { call, samples: measured } in measured {
            if let Some(kind) = RelatedKind::parse(call) {
                samples.related.entry(kind.class.clone()).or_default().push(kind);
            }
            let is_of_ranks = BETWEEN_RANKS.contains(&call.as_str());
            for [a, b, c, seconds] in measured {
                let own = if is_of_ranks { of_ranks(call, *a) } else { call.clone() };
                for kind in any_variant(call).into_iter().map(str::to_owned).chain([own]) {
                    let sample = Sample { size: [*a, *b, *c], seconds: *seconds };
                    samples.by_kind.entry(kind).or_default().push(sample);
                }
            }
        }
        samples
    }

    /// Adds calls of a configuration, which take these times.
    pub(crate) fn with_probed(mut self, probed: &[MeasuredCalls]) -> Self {
        for MeasuredCalls { call, samples } in probed {
            let by_size = samples.iter().map(|[a, b, c, seconds]| ([*a, *b, *c].map(f64::to_bits), *seconds));
            self.probed.insert(call.clone(), by_size.collect());
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.probed.is_empty()
    }

    /// Returns whether calls of this kind were measured.
    pub(crate) fn has(&self, size: &CallSize) -> bool {
        self.by_kind.contains_key(&size.kind) || self.own(size).is_some()
    }

    /// Returns the seconds of a call of exactly this kind and size in a configuration's own step.
    fn own(&self, size: &CallSize) -> Option<f64> {
        self.probed.get(&size.kind)?.get(&size.size.map(f64::to_bits)).copied()
    }

    pub(crate) fn first(&self, kind: &str) -> Option<f64> {
        self.by_kind.get(kind)?.first().map(|sample| sample.seconds)
    }

    /// Returns the ratio of measured to modelled time for this kind and size, from the nearest samples of the
    /// kind and of related kinds, unless the configuration's own call was measured; `None` without samples.
    pub(crate) fn ratio(&self, size: &CallSize, model: impl Fn([f64; 3]) -> f64) -> Option<f64> {
        if let Some(seconds) = self.own(size) {
            return Some(seconds / model(size.size)).filter(|ratio| ratio.is_finite());
        }
        let alike = self.alike(&size.kind);
        let mut near: Vec<Near> = Vec::new();
        for kind in &alike {
            near.extend(kind.samples.iter().map(|sample| Near {
                kind,
                sample,
                squared: squared_distance(size.size, sample.size) + kind.difference,
            }));
        }
        if near.len() > NEAREST {
            near.select_nth_unstable_by(NEAREST, |one, other| one.squared.total_cmp(&other.squared));
            near.truncate(NEAREST);
        }
        near.retain(|near| model(near.sample.size) > 0.0);
        let value = |Near { kind, sample, squared }: &Near| {
            (*squared, (kind.factor * sample.seconds / model(sample.size)).ln())
        };
        let values: Vec<_> = near.iter().map(value).collect();
        let squared = |one: usize, other: usize| {
            let [one, other] = [&near[one], &near[other]];
            squared_distance(one.sample.size, other.sample.size) + one.kind.difference(other.kind)
        };
        kriging::estimate(&values, squared).map(f64::exp)
    }

    /// Returns samples whose measured ratios apply to a kind: for a matmul or convolution, its class; for a
    /// kernel, the kind itself or else related variants (without dropout, another variant, the other half
    /// type).
    fn alike(&self, kind: &str) -> Vec<Alike<'_>> {
        let samples = |kind: &str| self.by_kind.get(kind).map(Vec::as_slice);
        if let Some(own) = RelatedKind::parse(kind) {
            let related = self.related.get(&own.class).into_iter().flatten();
            let alike = related.map(|other| Alike {
                samples: samples(&other.kind).unwrap_or(&[]),
                related: Some(other),
                difference: own.difference(other),
                factor: 1.0,
            });
            return alike.collect();
        }
        let plain = kind.replace(DROPOUT, "");
        let factor = dropout_factor(kind);
        let kinds = [
            (Some(kind), 1.0),
            (Some(&*plain), factor),
            (any_variant(kind), 1.0),
            (any_variant(&plain), factor),
        ];
        let found = kinds.into_iter().find_map(|(kind, factor)| {
            let kind = kind?;
            let kinds = [(Some(kind.to_owned()), 0.0), (other_half(kind), DIFFERENCE_OF_HALVES)];
            let found = kinds.into_iter().filter_map(|(kind, difference)| {
                Some(Alike { samples: samples(&kind?)?, related: None, difference, factor })
            });
            Some(found.collect::<Vec<_>>()).filter(|found| !found.is_empty())
        });
        found.unwrap_or_default()
    }
}

/// Samples of one kind whose measured ratios apply to another kind.
struct Alike<'a> {
    samples: &'a [Sample],
    /// The kind, if it is of matmuls or convolutions.
    related: Option<&'a RelatedKind>,
    /// Added to squared distances between sizes, in doublings, because the kinds differ.
    difference: f64,
    /// Factor of the seconds.
    factor: f64,
}

impl Alike<'_> {
    /// Returns what is added to squared distances to samples of `other`.
    fn difference(&self, other: &Self) -> f64 {
        match (self.related, other.related) {
            (Some(one), Some(other)) => one.difference(other),
            _ => (self.difference - other.difference).abs(),
        }
    }
}

/// A sample near the size of a call.
struct Near<'a> {
    /// The kind of the sample.
    kind: &'a Alike<'a>,
    sample: &'a Sample,
    /// Squared distance to the call, in doublings.
    squared: f64,
}

/// Returns the usual ratio of a kernel's time with dropout to that without; 1 for kinds without dropout.
fn dropout_factor(kind: &str) -> f64 {
    match kind {
        kind if !kind.contains(DROPOUT) => 1.0,
        kind if kind.starts_with("attention_f32") => 1.1,
        kind if kind.starts_with("attention_hopper") => 2.0,
        _ => 1.45,
    }
}

/// Returns the kind of the same kernel in the other half type; `None` for other types.
fn other_half(kind: &str) -> Option<String> {
    let pairs = [("_bf16", "_f16"), ("_f16", "_bf16")];
    let (own, other) = pairs.into_iter().find(|(own, _)| kind.contains(own))?;
    Some(kind.replace(own, other))
}

/// Returns the common kind of all variants of a kernel; `None` for other calls.
fn any_variant(kind: &str) -> Option<&str> {
    let (name, variant) = kind.rsplit_once(' ')?;
    (name.contains('.') && variant.parse::<usize>().is_ok()).then_some(name)
}

/// Returns the squared distance between two sizes, in doublings.
fn squared_distance(one: [f64; 3], other: [f64; 3]) -> f64 {
    let doublings = |(one, other): (f64, f64)| (one.max(1.0) / other.max(1.0)).log2();
    one.into_iter().zip(other).map(|pair| doublings(pair).powi(2)).sum()
}

#[cfg(test)]
mod tests;
