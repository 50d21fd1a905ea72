//! Matmuls by the properties that select their algorithm, and the built-in table of algorithms.
//!
//! cuBLASLt's first choice is good on average, but not the best for every shape. `plimsoll bench matmul`
//! measures the best algorithm for a model of device and a version of the library, and writes it to the
//! table. A run never times algorithms.

mod table;

use std::fmt;
use std::str::FromStr;

use crate::dtype::DType;
use crate::matmul::{Epilogue, Matmul, Scales};

pub use table::{Choice, MatmulTable, TableError};

/// Kind of an epilogue, without operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EpilogueKind {
    /// [`Epilogue::None`].
    None,
    /// [`Epilogue::Bias`].
    Bias,
    /// [`Epilogue::BiasRelu`].
    BiasRelu,
    /// [`Epilogue::BiasResidualRelu`].
    BiasResidualRelu,
    /// [`Epilogue::GeluBias`].
    GeluBias,
    /// [`Epilogue::GeluGradient`].
    GeluGradient,
    /// [`Epilogue::BiasGradient`].
    BiasGradient,
    /// [`Epilogue::Combined`].
    Combined,
}

/// Granularity of a matmul's scaling factors, and accumulation of FP8 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scaling {
    /// No factors: the operands are not FP8.
    None,
    /// One factor per operand.
    Tensor {
        /// Whether sums stay in the tensor cores' accumulators ([`Matmul::fast`]).
        fast: bool,
    },
    /// One factor per row of the left operand and per column of the right one.
    Outer {
        /// Whether sums stay in the tensor cores' accumulators ([`Matmul::fast`]).
        fast: bool,
    },
}

/// The properties that select a matmul's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatmulKey {
    /// Sizes m, n, k of out\[m, n\] = op(a)\[m, k\] · op(b)\[k, n\].
    pub sizes: [usize; 3],
    /// Whether the transposes of a and b are stored.
    pub transposed: [bool; 2],
    /// Element types of a, b and the output.
    pub types: [DType; 3],
    /// Whether the matmul adds to its output.
    pub accumulate: bool,
    /// Operation applied before the result is written.
    pub epilogue: EpilogueKind,
    /// Common alignment of all operands' addresses, in bytes.
    pub alignment: u32,
    /// Granularity of FP8 scaling factors.
    pub scaling: Scaling,
    /// Elements from one stored row of a, b and the output to the next.
    pub strides: [usize; 3],
}

/// Alignments that keys distinguish, in bytes: of whole storages, of 16-byte vectors, or of elements.
const ALIGNMENTS: [u32; 3] = [256, 16, 2];

impl MatmulKey {
    /// Returns the key of `call`.
    pub fn from_call(call: &Matmul<'_>) -> Self {
        let added = match call.epilogue {
            Epilogue::BiasResidualRelu { residual: added, .. } | Epilogue::Combined { added, .. } => added,
            _ => call.out.region,
        };
        let addresses = [call.a.region, call.b.region, call.out.region, added]
            .map(|region| region.buffer.address() + region.offset as u64);
        let aligned = |to: &u32| addresses.iter().all(|address| address.is_multiple_of(u64::from(*to)));
        let shapes = [(call.a, [call.m, call.k]), (call.b, [call.k, call.n]), (call.out, [call.m, call.n])];
        MatmulKey {
            sizes: [call.m, call.n, call.k],
            transposed: [call.a.transposed, call.b.transposed],
            types: [call.a.dtype, call.b.dtype, call.out.dtype],
            accumulate: call.accumulate,
            epilogue: call.epilogue.kind(),
            alignment: ALIGNMENTS.into_iter().find(aligned).unwrap_or(1),
            scaling: match call.a.scales {
                None => Scaling::None,
                Some(Scales::Tensor(_)) => Scaling::Tensor { fast: call.fast },
                Some(Scales::Outer(_)) => Scaling::Outer { fast: call.fast },
            },
            strides: shapes.map(|(operand, shape)| operand.stored(shape)[1]),
        }
    }

    /// Returns the stored rows and columns of a, b and the output.
    pub fn stored(&self) -> [[usize; 2]; 3] {
        let [m, n, k] = self.sizes;
        let [a, b] = self.transposed;
        [if a { [k, m] } else { [m, k] }, if b { [n, k] } else { [k, n] }, [m, n]]
    }

    /// Returns the key's text without sizes and strides.
    pub fn kind(&self) -> String {
        let [a, b, out] = self.types;
        let [left, right] = self.transposed.map(|transposed| if transposed { 't' } else { 'n' });
        let write = if self.accumulate { "add" } else { "set" };
        let epilogue = self.epilogue.name();
        let kind = format!("{left}{right} {a},{b},{out} {write} {epilogue} {}", self.alignment);
        match self.scaling {
            Scaling::None => kind,
            scaling => format!("{kind} {}", scaling.name()),
        }
    }

    /// Returns the alignments of a, b and the output in bytes: the common alignment, but at least each type's
    /// element size, without which cuBLASLt has no algorithm.
    pub fn operand_alignments(&self) -> [u32; 3] {
        self.types.map(|dtype| self.alignment.max(dtype.bytes() as u32))
    }
}

impl Epilogue<'_> {
    /// Returns the kind of the epilogue.
    pub fn kind(&self) -> EpilogueKind {
        match self {
            Epilogue::None => EpilogueKind::None,
            Epilogue::Bias(_) => EpilogueKind::Bias,
            Epilogue::BiasRelu(_) => EpilogueKind::BiasRelu,
            Epilogue::BiasResidualRelu { .. } => EpilogueKind::BiasResidualRelu,
            Epilogue::GeluBias { .. } => EpilogueKind::GeluBias,
            Epilogue::GeluGradient { .. } => EpilogueKind::GeluGradient,
            Epilogue::BiasGradient(_) => EpilogueKind::BiasGradient,
            Epilogue::Combined { .. } => EpilogueKind::Combined,
        }
    }
}

const EPILOGUES: [(EpilogueKind, &str); 8] = [
    (EpilogueKind::None, "plain"),
    (EpilogueKind::Bias, "bias"),
    (EpilogueKind::BiasRelu, "bias+relu"),
    (EpilogueKind::BiasResidualRelu, "bias+residual+relu"),
    (EpilogueKind::GeluBias, "bias+gelu"),
    (EpilogueKind::GeluGradient, "gelu-gradient"),
    (EpilogueKind::BiasGradient, "bias-gradient"),
    (EpilogueKind::Combined, "combined"),
];

impl EpilogueKind {
    fn name(self) -> &'static str {
        EPILOGUES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// Prefix of the strides in a key's text.
const STRIDES: &str = "strides=";

const SCALINGS: [(Scaling, &str); 5] = [
    (Scaling::None, ""),
    (Scaling::Tensor { fast: true }, "fast"),
    (Scaling::Tensor { fast: false }, "precise"),
    (Scaling::Outer { fast: true }, "fast-outer"),
    (Scaling::Outer { fast: false }, "precise-outer"),
];

impl Scaling {
    fn name(self) -> &'static str {
        SCALINGS.iter().find(|(scaling, _)| *scaling == self).map_or("", |(_, name)| name)
    }
}

/// Formats as `65536x2304x768 nt bf16,bf16,bf16 set bias 256`: sizes, storage of a and b, types, whether the
/// output is set or added to, epilogue, alignment. FP8 adds `fast` or `precise`, followed by `-outer` for
/// factors of rows and columns. Padded rows add the strides of a, b and the output: `strides=768,768,50264`.
impl fmt::Display for MatmulKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.sizes;
        write!(f, "{m}x{n}x{k} {}", self.kind())?;
        if self.strides == self.stored().map(|[_, columns]| columns) {
            return Ok(());
        }
        let [a, b, out] = self.strides;
        write!(f, " {STRIDES}{a},{b},{out}")
    }
}

/// Parses the text that [`MatmulKey`] prints.
impl FromStr for MatmulKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (words, strides) = match words[..] {
            [ref words @ .., last] if last.starts_with(STRIDES) => (words, last.strip_prefix(STRIDES)),
            ref words => (words, None),
        };
        let (words, scaling) = match *words {
            [ref words @ .., scaling] if words.len() == 6 => (words, scaling),
            ref words => (words, ""),
        };
        let [sizes, stored, types, write, epilogue, alignment] = *words else {
            return Err(format!("\"{text}\" is not sizes, storage, types, set or add, epilogue, alignment"));
        };
        let bad = |what: &str| format!("\"{what}\" in \"{text}\"");
        let number = |word: &str| word.parse::<usize>().map_err(|_| bad(word));
        let dtype = |word: &str| {
            let dtype = DType::ALL.iter().copied().find(|dtype| dtype.name() == word);
            dtype.filter(|dtype| dtype.is_float() || dtype.is_fp8()).ok_or_else(|| bad(word))
        };
        let transposed = |letter: char| match letter {
            'n' => Ok(false),
            't' => Ok(true),
            _ => Err(bad(stored)),
        };
        let entry = EPILOGUES.iter().find(|(_, name)| *name == epilogue);
        let key = MatmulKey {
            sizes: three(sizes, 'x', number).ok_or_else(|| bad(sizes))??,
            transposed: match stored.chars().collect::<Vec<_>>()[..] {
                [a, b] => [transposed(a)?, transposed(b)?],
                _ => return Err(bad(stored)),
            },
            types: three(types, ',', dtype).ok_or_else(|| bad(types))??,
            accumulate: match write {
                "set" => false,
                "add" => true,
                _ => return Err(bad(write)),
            },
            epilogue: entry.ok_or_else(|| bad(epilogue))?.0,
            alignment: alignment.parse().map_err(|_| bad(alignment))?,
            scaling: SCALINGS.iter().find(|(_, name)| *name == scaling).ok_or_else(|| bad(scaling))?.0,
            strides: [0; 3],
        };
        let strides = match strides {
            Some(strides) => three(strides, ',', number).ok_or_else(|| bad(strides))??,
            None => key.stored().map(|[_, columns]| columns),
        };
        Ok(MatmulKey { strides, ..key })
    }
}

/// Splits a text at two separators into three parts; `None` if there are not exactly three.
fn three<T, E>(
    text: &str,
    separator: char,
    read: impl Fn(&str) -> Result<T, E>,
) -> Option<Result<[T; 3], E>> {
    let [a, b, c] = text.split(separator).collect::<Vec<_>>()[..] else { return None };
    let all = || Ok([read(a)?, read(b)?, read(c)?]);
    Some(all())
}
