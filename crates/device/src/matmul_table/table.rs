//! The table's text format: one line per matmul, for one model of device and one version of cuBLASLt.

use std::collections::BTreeMap;
use std::fmt;

use super::MatmulKey;

/// A cuBLASLt algorithm in the library's serialised form, valid for one version of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Content of `cublasLtMatmulAlgo_t`.
    pub algorithm: [u64; 8],
    /// Human-readable description.
    pub note: String,
}

/// Chosen algorithms by matmul, for one model of device and version of cuBLASLt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatmulTable {
    /// Model of the device.
    pub device: String,
    /// Version of cuBLASLt.
    pub library: usize,
    /// The chosen algorithms. For other matmuls, cuBLASLt's first choice is used.
    pub choices: BTreeMap<MatmulKey, Choice>,
}

/// A line that does not parse as a table entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TableError {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the problem.
    pub problem: String,
}

/// The built-in tables, one for each model of device.
const EMBEDDED: [&str; 2] = [include_str!("nvidia_h100_80gb.txt"), include_str!("nvidia_h200.txt")];

impl MatmulTable {
    /// Returns the built-in table for this device and version of cuBLASLt; empty if there is none.
    pub fn embedded(device: &str, library: usize) -> Self {
        let tables = EMBEDDED.iter().filter_map(|text| Self::parse(text).ok());
        let table = tables.into_iter().find(|table| table.device == device && table.library == library);
        table.unwrap_or_else(|| Self::empty(device, library))
    }

    /// Returns a table without entries, so that cuBLASLt's first choice is used for every matmul.
    pub fn empty(device: &str, library: usize) -> Self {
        MatmulTable { device: device.to_owned(), library, choices: BTreeMap::new() }
    }

    /// Parses the text that [`MatmulTable`] prints.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut table = MatmulTable::default();
        for (index, line) in text.lines().enumerate() {
            let at = |problem: String| TableError { line: index + 1, problem };
            let (line, note) = line.split_once('#').unwrap_or((line, ""));
            let line = line.trim();
            if let Some(device) = line.strip_prefix("device ") {
                device.clone_into(&mut table.device);
            } else if let Some(version) = line.strip_prefix("cublaslt ") {
                table.library = version.parse().map_err(|_| at(format!("\"{version}\" is not a version")))?;
            } else if !line.is_empty() {
                let (key, algorithm) = line
                    .rsplit_once(' ')
                    .ok_or_else(|| at(format!("\"{line}\" is not a matmul and an algorithm")))?;
                let choice =
                    Choice { algorithm: words(algorithm).map_err(at)?, note: note.trim().to_owned() };
                table.choices.insert(key.parse().map_err(at)?, choice);
            }
        }
        Ok(table)
    }
}

/// Parses eight hexadecimal numbers separated by hyphens.
fn words(text: &str) -> Result<[u64; 8], String> {
    let words: Result<Vec<u64>, _> = text.split('-').map(|word| u64::from_str_radix(word, 16)).collect();
    let words = words.ok().and_then(|words| words.try_into().ok());
    words.ok_or_else(|| format!("\"{text}\" is not an algorithm: 8 hexadecimal numbers"))
}

impl fmt::Display for MatmulTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Algorithms of matmuls, chosen by measuring: `plimsoll bench matmul --write` made this."
        )?;
        writeln!(f, "device {}\ncublaslt {}", self.device, self.library)?;
        for (key, Choice { algorithm, note }) in &self.choices {
            let words = algorithm.map(|word| format!("{word:x}")).join("-");
            writeln!(f, "{key} {words} # {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::EpilogueKind;
    use super::*;
    use crate::dtype::DType;
    use crate::matmul_table::Scaling;

    fn any_key() -> impl Strategy<Value = MatmulKey> {
        let size = 1_usize..1 << 40;
        let dtype = prop::sample::select(vec![DType::F32, DType::Bf16, DType::F16, DType::E4m3]);
        let scaling = prop::sample::select(vec![
            Scaling::None,
            Scaling::Tensor { fast: true },
            Scaling::Outer { fast: false },
        ]);
        let epilogue = prop::sample::select(vec![
            EpilogueKind::None,
            EpilogueKind::Bias,
            EpilogueKind::BiasRelu,
            EpilogueKind::BiasResidualRelu,
            EpilogueKind::GeluBias,
            EpilogueKind::GeluGradient,
            EpilogueKind::BiasGradient,
            EpilogueKind::Combined,
        ]);
        let alignment = prop::sample::select(vec![1_u32, 2, 16, 256]);
        let sizes = [size.clone(), size.clone(), size];
        let types = [dtype.clone(), dtype.clone(), dtype];
        let padding = prop::sample::select(vec![[0; 3], [7, 0, 0], [0, 1, 3]]);
        (sizes, any::<[bool; 2]>(), types, any::<bool>(), epilogue, alignment, scaling, padding).prop_map(
            |(sizes, transposed, types, accumulate, epilogue, alignment, scaling, padding)| {
                let strides = [0; 3];
                let key =
                    MatmulKey { sizes, transposed, types, accumulate, epilogue, alignment, scaling, strides };
                let columns = key.stored().map(|[_, columns]| columns);
                let strides = std::array::from_fn(|operand| columns[operand] + padding[operand]);
                MatmulKey { strides, ..key }
            },
        )
    }

    proptest! {
        #[test]
        fn printed_tables_parse_to_the_same_table(
            choices in prop::collection::btree_map(any_key(), (any::<[u64; 8]>(), "[a-z0-9 ,.×]{0,20}"), 0..8),
            library in any::<usize>(),
        ) {
            let choice = |(key, (algorithm, note)): (MatmulKey, ([u64; 8], String))| {
                (key, Choice { algorithm, note: note.trim().to_owned() })
            };
            let choices = choices.into_iter().map(choice).collect();
            let table = MatmulTable { device: "NVIDIA H200 NVL".to_owned(), library, choices };
            prop_assert_eq!(MatmulTable::parse(&table.to_string()), Ok(table));
        }
    }

    #[test]
    fn errors_name_the_line() {
        let good = "3x4x5 nt bf16,bf16,f32 add plain 256";
        let words = "1-2-3-4-5-6-7-f";
        assert_eq!(MatmulTable::parse(&format!("{good} {words}")).unwrap().choices.len(), 1);
        for (line, problem) in [
            ("cublaslt new".to_owned(), "\"new\" is not a version".to_owned()),
            ("3x4".to_owned(), "\"3x4\" is not a matmul and an algorithm".to_owned()),
            (format!("{good} 1-2"), "\"1-2\" is not an algorithm: 8 hexadecimal numbers".to_owned()),
            (
                format!("3x4x5 {words}"),
                "\"3x4x5\" is not sizes, storage, types, set or add, epilogue, alignment".to_owned(),
            ),
            (
                format!("{} {words}", good.replace("x5", "")),
                format!("\"3x4\" in \"{}\"", good.replace("x5", "")),
            ),
            (
                format!("{} {words}", good.replace("nt", "nx")),
                format!("\"nx\" in \"{}\"", good.replace("nt", "nx")),
            ),
            (
                format!("{} {words}", good.replace("f32", "f8")),
                format!("\"f8\" in \"{}\"", good.replace("f32", "f8")),
            ),
            (
                format!("{} {words}", good.replace("add", "put")),
                format!("\"put\" in \"{}\"", good.replace("add", "put")),
            ),
            (
                format!("{} {words}", good.replace("plain", "tanh")),
                format!("\"tanh\" in \"{}\"", good.replace("plain", "tanh")),
            ),
            (format!("{good} strides=5,8 {words}"), format!("\"5,8\" in \"{good} strides=5,8\"")),
        ] {
            let error = MatmulTable::parse(&format!("device X\n{line}\n")).unwrap_err();
            assert_eq!(error, TableError { line: 2, problem });
        }
    }

    #[test]
    fn embedded_tables_parse_and_match_only_their_device_and_version() {
        for text in EMBEDDED {
            let table = MatmulTable::parse(text).unwrap();
            assert_eq!(table.to_string(), text, "as the program would write it");
            assert_eq!(MatmulTable::embedded(&table.device, table.library), table);
            assert!(MatmulTable::embedded(&table.device, table.library + 1).choices.is_empty());
            assert!(MatmulTable::embedded("NVIDIA A100", table.library).choices.is_empty());
        }
    }
}
