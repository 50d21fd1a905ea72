//! Checks of the modules that predict later tokens.

use keys::{Error, RawValues};
use nn::Examples;

use crate::choices::DataKind;
use crate::run_config::RunConfig;
use crate::sections::{Data, ModelSection, Train};

/// Refuses modules for models and data that exclude them.
pub(crate) fn check_prediction(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let tokens = config.train.predict_tokens;
    if tokens == 1 {
        return Ok(());
    }
    let key = Train::predict_tokens;
    if let Some(other) = config.model.without_modules() {
        let reason = format!("{key} = {tokens} adds modules to the model, which {other} excludes");
        return Err(raw.conflict(&[key, ModelSection::kind], reason));
    }
    if config.data.kind == DataKind::Preference {
        let reason = format!("{key} = {tokens} has no loss for data.kind = \"preference\": use 1");
        return Err(raw.conflict(&[key, Data::kind], reason));
    }
    match config.model.examples() {
        Examples::Tokens { context, .. } if tokens > context => {
            let reason = format!("{key} = {tokens} is more than the {context} tokens of a sequence");
            Err(raw.conflict(&[key, ModelSection::kind], reason))
        }
        _ => Ok(()),
    }
}
