//! What the configuration can say and the trainer cannot do yet: the one list, which features shrink.

use crate::error::ConfigError;
use crate::key::Key;
use crate::keys;
use crate::raw::Raw;
use crate::value::Value;

/// Values of a key that are known and refused.
pub(crate) struct Unbuilt {
    pub(crate) key: &'static Key,
    /// Whether this value needs the feature. What is wrong in another way is not refused here.
    needs: fn(&Value) -> bool,
    /// The feature and its verb, before "not built yet".
    what: &'static str,
}

pub(crate) static UNBUILT: &[Unbuilt] = &[
    Unbuilt { key: &keys::COMPUTE, needs: |v| among(v, &["f16"]), what: "computing in f16 is" },
    Unbuilt {
        key: &keys::TOKENIZER,
        needs: |v| matches!(v, Value::Text(name) if name != "bytes"),
        what: "tokenizers other than \"bytes\" are",
    },
];

fn among(value: &Value, names: &[&str]) -> bool {
    matches!(value, Value::Text(name) if names.contains(&name.as_str()))
}

/// Refuses the first value that needs what is not built.
pub(crate) fn refuse(raw: &Raw) -> Result<(), ConfigError> {
    for Unbuilt { key, needs, what } in UNBUILT {
        if let Some(entry) = raw.given(key).filter(|entry| needs(&entry.value)) {
            return Err(ConfigError::Unbuilt {
                place: entry.place.clone(),
                key: key.path,
                value: entry.shown.clone(),
                what,
            });
        }
    }
    Ok(())
}
