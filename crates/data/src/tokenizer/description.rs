//! Collects special and added tokens from all files that define them, merged as transformers does.

use crate::Error;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::class_defaults::tokens_of;
use super::folder::{ADDED, CONFIGURATION, GENERATION, SPECIAL, TokenizerFolder};
use super::keys::TOKENIZER_CONFIG;

/// Names of special tokens that any tokenizer may have.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys of lists of unnamed special tokens; the second is an older name.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];
/// Key of the added tokens by id.
const DECODER: &str = "added_tokens_decoder";

/// Special and added tokens of a tokenizer.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Special tokens by the names that chat templates may use.
    pub(super) named: Vec<(String, AddedToken)>,
    /// Tokens, in order, that `tokenizer.json` lacks or describes differently.
    pub(super) added: Vec<AddedToken>,
    /// Whether special tokens that a prompt spells out are encoded as plain text.
    pub(super) splits_special: bool,
    /// Id of the first token of generated texts.
    pub(super) first: Option<u32>,
    /// Ids of the tokens that end generated texts.
    pub(super) ends: Vec<u32>,
}

impl Description {
    /// Merges the files of a folder. `known` are the added tokens of its `tokenizer.json`; `has` returns
    /// whether a text is a token there.
    ///
    /// # Errors
    /// A file is not a JSON object, or has an invalid token; the error names file and key.
    pub(super) fn read(
        folder: &TokenizerFolder,
        known: &[AddedToken],
        has: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let configuration = folder.object(CONFIGURATION)?;
        let mut names = Names::default();
        let class = configuration.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        for (name, text) in tokens_of(class).iter().filter(|(_, text)| has(text)) {
            names.set(name, Some(AddedToken::from(*text, true)));
        }
        let unread = TOKENIZER_CONFIG
            .check(&configuration)
            .map_err(|reason| Error::BadTokenizerFile { path: folder.path_of(CONFIGURATION), reason })?;
        let unread: Vec<_> = unread.into_iter().filter(|key| !key.ends_with("_token")).collect();
        if !unread.is_empty() {
            let path = folder.path_of(CONFIGURATION);
            let keys = unread.join(", ");
            tracing::info!("{}: keys that are not read: {keys}", path.display());
        }
        let refused = |file: &'static str| {
            move |reason: String| Error::BadTokenizerFile { path: folder.path_of(file), reason }
        };
        names.merge(&configuration).map_err(refused(CONFIGURATION))?;
        let numbered = match configuration.get(DECODER).filter(|decoder| !decoder.is_null()) {
            Some(decoder) => numbered(decoder).map_err(refused(CONFIGURATION))?,
            // Folders of older versions.
            None => {
                names.merge(&folder.object(SPECIAL)?).map_err(refused(SPECIAL))?;
                names.numbered(&folder.object(ADDED)?).map_err(refused(ADDED))?
            }
        };
        names.take_properties(&numbered);
        let generation = folder.object(GENERATION)?;
        let tokens = |key| token_numbers(generation.get(key)).map_err(|reason| format!("{key}: {reason}"));
        Ok(Self {
            added: names.to_add(known, numbered),
            named: names.named,
            splits_special: configuration.get("split_special_tokens").is_some_and(|value| value == true),
            first: tokens("bos_token_id").map_err(refused(GENERATION))?.first().copied(),
            ends: tokens("eos_token_id").map_err(refused(GENERATION))?,
        })
    }

    pub(super) fn text_of(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(own, _)| own == name).map(|(_, token)| token.content.as_str())
    }
}

/// Special tokens with and without names.
#[derive(Default)]
struct Names {
    named: Vec<(String, AddedToken)>,
    extra: Vec<AddedToken>,
}

impl Names {
    fn set(&mut self, name: &str, token: Option<AddedToken>) {
        let own = self.named.iter().position(|(own, _)| own == name);
        match (own, token) {
            (Some(index), Some(token)) => self.named[index].1 = token,
            (Some(index), None) => drop(self.named.remove(index)),
            (None, token) => self.named.extend(token.map(|token| (name.to_owned(), token))),
        }
    }

    /// Adds the special tokens of a file; a later file overrides earlier ones.
    fn merge(&mut self, file: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in file {
            let is_token = NAMES.contains(&&**name)
                || name.ends_with("_token") && (value.is_string() || value["content"].is_string());
            if is_token {
                let text = Some(value).filter(|value| !value.is_null() && *value != "");
                let token = text.map(|value| token(value, true));
                self.set(name, token.transpose().map_err(|reason| format!("{name}: {reason}"))?);
            }
        }
        let Some((key, listed)) = LISTS.iter().find_map(|key| {
            let value = file.get(*key)?;
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            (!is_empty).then_some((*key, value))
        }) else {
            return Ok(());
        };
        let refused = |reason| format!("{key}: {reason}");
        match listed {
            Value::Array(tokens) => {
                for value in tokens {
                    let token = token(value, true).map_err(refused)?;
                    if !self.extra.iter().any(|own| own.content == token.content) {
                        self.extra.push(token);
                    }
                }
            }
            Value::Object(named) => {
                for (name, value) in named {
                    self.set(name, Some(token(value, true).map_err(refused)?));
                }
            }
            _ => return Err(refused("it is neither a list nor an object of tokens".to_owned())),
        }
        Ok(())
    }

    /// Returns the tokens of an `added_tokens.json` in order of their ids.
    fn numbered(&self, file: &Map<String, Value>) -> Result<Vec<AddedToken>, String> {
        let named = self.named.iter().map(|(_, token)| token);
        let special: Vec<&str> = named.chain(&self.extra).map(|token| token.content.as_str()).collect();
        let mut tokens = Vec::new();
        for (text, number) in file {
            let number = number.as_u64().ok_or_else(|| format!("\"{text}\" has no number"))?;
            tokens.push((number, AddedToken::from(text.as_str(), special.contains(&&**text))));
        }
        tokens.sort_by_key(|(number, _)| *number);
        Ok(tokens.into_iter().map(|(_, token)| token).collect())
    }

    /// Copies the properties of added tokens to the named special tokens.
    fn take_properties(&mut self, numbered: &[AddedToken]) {
        for (_, token) in &mut self.named {
            if let Some(same) = numbered.iter().find(|other| other.content == token.content) {
                *token = same.clone();
            }
        }
    }

    /// Returns the tokens that a tokenizer with the added tokens `known` lacks: first tokens with ids, then
    /// special ones.
    fn to_add(&self, known: &[AddedToken], numbered: Vec<AddedToken>) -> Vec<AddedToken> {
        let mut added: Vec<_> = numbered.into_iter().filter(|token| !known.contains(token)).collect();
        for token in self.named.iter().map(|(_, token)| token).chain(&self.extra) {
            if !known.iter().chain(&added).any(|own| own.content == token.content) {
                added.push(AddedToken { special: true, ..token.clone() });
            }
        }
        for token in &mut added {
            token.special |= self.named.iter().any(|(_, named)| named.content == token.content);
        }
        added
    }
}

/// Returns the tokens of an `added_tokens_decoder` in order of their ids.
fn numbered(decoder: &Value) -> Result<Vec<AddedToken>, String> {
    let entries = decoder.as_object().ok_or_else(|| format!("{DECODER} is no object"))?;
    let mut tokens = Vec::new();
    for (number, value) in entries {
        let refused = |reason: String| format!("{DECODER}, token {number}: {reason}");
        let number: u32 = number.parse().map_err(|_| refused("it is no number".to_owned()))?;
        tokens.push((number, token(value, false).map_err(refused)?));
    }
    tokens.sort_by_key(|(number, _)| *number);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

/// Parses a token: a string, or an object with `content` and properties.
fn token(value: &Value, is_special: bool) -> Result<AddedToken, String> {
    if let Some(text) = value.as_str() {
        return Ok(AddedToken::from(text, is_special));
    }
    let Some(content) = value["content"].as_str() else {
        return Err("it is neither a text nor an object with \"content\"".to_owned());
    };
    let flag = |key: &str| value[key].as_bool();
    let special = is_special || flag("special") == Some(true);
    Ok(AddedToken {
        content: content.to_owned(),
        single_word: flag("single_word") == Some(true),
        lstrip: flag("lstrip") == Some(true),
        rstrip: flag("rstrip") == Some(true),
        normalized: flag("normalized").unwrap_or(!special),
        special,
    })
}

pub(super) fn token_numbers(value: Option<&Value>) -> Result<Vec<u32>, String> {
    let number = |value: &Value| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| format!("{value} is no token's number"))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(number).collect(),
        Some(one) => number(one).map(|one| vec![one]),
    }
}
