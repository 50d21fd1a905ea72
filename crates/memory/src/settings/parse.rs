//! The grammar of the settings: `key:value` pairs, lists in brackets, white space ignored.

use super::{ENVIRONMENT, Settings};

const MIB: u64 = 1 << 20;

/// A setting that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allocator setting `{key}`: {problem}; allowed: {allowed}")]
pub struct SettingsError {
    /// The key, or the text found where a key is expected.
    pub key: String,
    /// Description of the problem.
    pub problem: String,
    /// The allowed values.
    pub allowed: &'static str,
}

impl Settings {
    /// Reads `key:value,key:[…]`, starting from the defaults.
    ///
    /// # Errors
    /// [`SettingsError`], which names the key and its allowed values.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::default().updated(text)
    }

    /// Returns these settings updated by `text` at run time.
    ///
    /// As in PyTorch, `max_split_size_mb`, `roundup_power2_divisions`, `garbage_collection_threshold` and
    /// `max_non_split_rounding_mb` return to their defaults if the text does not name them. Other keys keep
    /// their values.
    ///
    /// # Errors
    /// [`SettingsError`], which names the key and its allowed values.
    pub fn updated(&self, text: &str) -> Result<Settings, SettingsError> {
        parse(self, text)
    }

    /// Parses the first variable of [`ENVIRONMENT`] that `get` finds; without any, returns the defaults.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingsError> {
        ENVIRONMENT
            .iter()
            .find_map(|name| get(name))
            .map_or_else(|| Ok(Settings::default()), |t| Settings::parse(&t))
    }
}

const KEYS: &str = "backend, expandable_segments, garbage_collection_threshold, graph_capture_record_stream_reuse, \
large_segment_size_mb, max_non_split_rounding_mb, max_split_size_mb, per_process_memory_fraction, \
pinned_num_register_threads, pinned_reserve_segment_size_mb, pinned_use_background_threads, \
pinned_use_cuda_host_register, release_lock_on_cudamalloc, roundup_power2_divisions";

/// Splits the text into words and separators. White space is ignored and does not separate words.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        if matches!(c, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(c.to_string());
        } else {
            word.push(c);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

/// A value: one word, or the words of a list.
struct Value<'a> {
    key: &'a str,
    words: &'a [String],
    list: bool,
}

impl Value<'_> {
    fn refuse<T>(&self, problem: impl Into<String>, allowed: &'static str) -> Result<T, SettingsError> {
        Err(SettingsError { key: self.key.to_owned(), problem: problem.into(), allowed })
    }

    fn word(&self, allowed: &'static str) -> Result<&str, SettingsError> {
        match self.words {
            [word] if !self.list => Ok(word),
            _ => self.refuse("a single value is expected", allowed),
        }
    }

    fn boolean(&self) -> Result<bool, SettingsError> {
        match self.word("True, False")? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => self.refuse(format!("`{other}` is not a boolean"), "True, False"),
        }
    }

    fn number(&self, allowed: &'static str) -> Result<u64, SettingsError> {
        let word = self.word(allowed)?;
        word.parse().or_else(|_| self.refuse(format!("`{word}` is not a valid number"), allowed))
    }

    /// Parses whole MiB that satisfy `valid`, and returns bytes.
    fn mebibytes(&self, allowed: &'static str, valid: impl Fn(u64) -> bool) -> Result<u64, SettingsError> {
        let count = self.number(allowed)?;
        match count.checked_mul(MIB).filter(|_| valid(count)) {
            Some(bytes) => Ok(bytes),
            None => self.refuse(format!("{count} is out of range"), allowed),
        }
    }

    fn fraction(&self, allowed: &'static str, valid: impl Fn(f64) -> bool) -> Result<f64, SettingsError> {
        let word = self.word(allowed)?;
        match word.parse::<f64>() {
            Ok(value) if valid(value) => Ok(value),
            _ => self.refuse(format!("`{word}` is out of range"), allowed),
        }
    }

    /// Parses a table of divisions into `table`, the result of an earlier list in the same text.
    fn divisions(&self, mut table: [u64; 16]) -> Result<[u64; 16], SettingsError> {
        const ALLOWED: &str = "a power of two, or [size:divisions,…,>:divisions] with sizes in MiB that are powers \
of two and divisions that are 0 or powers of two";
        if !self.list {
            let count = self.number(ALLOWED)?;
            if !count.is_power_of_two() {
                return self.refuse(format!("{count} is not a power of two"), ALLOWED);
            }
            return Ok([count; 16]);
        }
        let mut last = 0;
        let mut first = true;
        for pair in self.words.split(|w| w == ",").filter(|pair| !pair.is_empty()) {
            let [size, colon, count] = pair else {
                return self.refuse(format!("`{}` is not a size:divisions pair", pair.concat()), ALLOWED);
            };
            let count = match count.parse::<u64>() {
                Ok(count) if colon == ":" && (count == 0 || count.is_power_of_two()) => count,
                _ => return self.refuse(format!("`{count}` is neither 0 nor a power of two"), ALLOWED),
            };
            if size == ">" {
                table[last + 1..].fill(count);
                continue;
            }
            let slot = match size.parse::<u64>() {
                Ok(size) if size.is_power_of_two() => (size.ilog2() as usize).min(15),
                _ => return self.refuse(format!("`{size}` is not a power of two"), ALLOWED),
            };
            if first {
                table[..slot].fill(count);
            }
            table[slot] = count;
            last = slot;
            first = false;
        }
        Ok(table)
    }
}

/// Splits tokens into keys and their values.
fn pairs(tokens: &[String]) -> Result<Vec<Value<'_>>, SettingsError> {
    let refuse = |key: &str, problem: &str| {
        Err(SettingsError {
            key: key.to_owned(),
            problem: problem.to_owned(),
            allowed: "key:value,key:[…],…",
        })
    };
    let mut values = Vec::new();
    let mut rest = tokens;
    while let [key, after @ ..] = rest {
        if key == "," {
            rest = after;
            continue;
        }
        if matches!(key.as_str(), ":" | "[" | "]") {
            return refuse(key, "a key is expected here");
        }
        let [colon, after @ ..] = after else { return refuse(key, "it has no value") };
        if colon != ":" {
            return refuse(key, "a colon is expected after the key");
        }
        let (words, list, after) = match after {
            [open, after @ ..] if open == "[" => {
                let Some(end) = after.iter().position(|t| t == "]") else {
                    return refuse(key, "its list is not closed");
                };
                (&after[..end], true, &after[end + 1..])
            }
            [word, after @ ..] if !matches!(word.as_str(), "," | ":" | "]") => {
                (std::slice::from_ref(word), false, after)
            }
            _ => return refuse(key, "it has no value"),
        };
        if let [next, ..] = after
            && next != ","
        {
            return refuse(key, "a comma is expected after its value");
        }
        values.push(Value { key, words, list });
        rest = after;
    }
    Ok(values)
}

/// Applies `text` to the earlier settings.
pub(super) fn parse(before: &Settings, text: &str) -> Result<Settings, SettingsError> {
    let tokens = tokens(text);
    let values = pairs(&tokens)?;
    let defaults = Settings::default();
    let mut new = Settings {
        max_split_size: defaults.max_split_size,
        roundup_power2_divisions: defaults.roundup_power2_divisions,
        garbage_collection_threshold: defaults.garbage_collection_threshold,
        text: text.to_owned(),
        warnings: Vec::new(),
        ..before.clone()
    };
    // The segment size bounds other keys, so it is read first, wherever it stands.
    for value in values.iter().filter(|v| v.key == "large_segment_size_mb") {
        new.large_segment_size = value.mebibytes("whole MiB above 10", |mb| mb > 10 && mb < 1 << 20)?;
    }
    new.max_non_split_rounding = new.large_segment_size;
    for value in &values {
        apply(&mut new, value)?;
    }
    Ok(new)
}

fn apply(new: &mut Settings, value: &Value<'_>) -> Result<(), SettingsError> {
    const SPLIT: &str = "whole MiB, at least large_segment_size_mb (20 unless set)";
    let least = new.large_segment_size / MIB;
    match value.key {
        "large_segment_size_mb" => {}
        "max_split_size_mb" => new.max_split_size = value.mebibytes(SPLIT, |mb| mb >= least)?,
        "max_non_split_rounding_mb" => {
            new.max_non_split_rounding = value.mebibytes(SPLIT, |mb| mb >= least)?
        }
        "garbage_collection_threshold" => {
            new.garbage_collection_threshold =
                value.fraction("a number above 0 and below 1", |t| t > 0.0 && t < 1.0)?;
        }
        "roundup_power2_divisions" => {
            new.roundup_power2_divisions = value.divisions(new.roundup_power2_divisions)?;
        }
        "expandable_segments" => new.expandable_segments = value.boolean()?,
        "per_process_memory_fraction" => {
            new.per_process_memory_fraction =
                value.fraction("a number from 0 to 1", |f| (0.0..=1.0).contains(&f))?;
        }
        "backend" => {
            if value.word("native")? != "native" {
                return value.refuse("this allocator has no other backend", "native");
            }
        }
        _ => without_meaning(new, value)?,
    }
    Ok(())
}

/// Checks keys of PyTorch that change nothing in this allocator, and adds a warning for each.
fn without_meaning(new: &mut Settings, value: &Value<'_>) -> Result<(), SettingsError> {
    let reason = match value.key {
        "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
            value.boolean()?;
            "one thread uses an allocator, so there is no lock to release"
        }
        "graph_capture_record_stream_reuse" => {
            value.boolean()?;
            "blocks freed while a private pool is open are always kept until it is closed"
        }
        "pinned_use_cuda_host_register"
        | "pinned_use_hip_host_register"
        | "pinned_use_background_threads" => {
            value.boolean()?;
            "page-locked host memory does not come from this allocator"
        }
        "pinned_num_register_threads" => {
            const ALLOWED: &str = "a power of two up to 128";
            let count = value.number(ALLOWED)?;
            if !count.is_power_of_two() || count > 128 {
                return value.refuse(format!("{count} is out of range"), ALLOWED);
            }
            "page-locked host memory does not come from this allocator"
        }
        "pinned_reserve_segment_size_mb" => {
            value.mebibytes("whole MiB above 0", |mb| mb > 0)?;
            "page-locked host memory does not come from this allocator"
        }
        _ => return value.refuse("there is no such key", KEYS),
    };
    new.warnings.push(format!("allocator setting `{}` does nothing here: {reason}", value.key));
    Ok(())
}
