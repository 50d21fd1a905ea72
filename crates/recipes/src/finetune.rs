//! Creates the configuration of a fine-tuning job.

use config::{Data, DataKind, LoraSection, Optim, Preference, RunConfig, Train};

use crate::draft::{Draft, JobOptions};
use crate::error::{RecipeError, Result};
use crate::found_data::{FoundData, HELD_OUT, find_data};
use crate::model_folder::{ModelFolder, has_template};

/// Maximum tokens in a sequence of text, for models with a longer context.
const MOST_CONTEXT: usize = 2048;
/// Rank of adapters, and alpha (their scale times the rank).
const RANK: usize = 16;
const ALPHA: f64 = 32.0;

/// Returns a configuration that fine-tunes the model in the folder `model`: with adapters or, if `full`, all
/// weights.
///
/// # Errors
/// There is no model, the data is of no known kind, or conversations lack a chat template.
pub fn finetune(model: &str, full: bool, options: &JobOptions) -> Result<Draft> {
    let current = options.directories.current();
    let folder = ModelFolder::open(current, model)?;
    let found = find_data(current, &options.data)?;
    let mut draft = Draft::new("finetune");
    set_model(&mut draft, model, &folder, options);
    if matches!(found.kind, DataKind::Text | DataKind::Tokens) {
        set_context(&mut draft, &folder, &found);
    }
    set_adapters(&mut draft, full);
    set_texts(&mut draft, &found, options);
    set_tokenizer(&mut draft, model, &folder, &found, options)?;
    set_training(&mut draft, found.kind, options)?;
    draft.set_precision(options);
    Ok(draft)
}

fn set_model(draft: &mut Draft, model: &str, folder: &ModelFolder, options: &JobOptions) {
    draft.choose(format!("model: {model}, {}", folder.summary));
    let from = options.directories.for_configuration(model);
    draft.document.set("model.from", from, "folder with the sizes and first weights");
}

fn set_context(draft: &mut Draft, folder: &ModelFolder, found: &FoundData) {
    let made_for = folder.context;
    let usual = made_for.min(MOST_CONTEXT);
    let context = usual.min(found.most_context());
    draft.document.set("model.context", context, format!("tokens in a sequence; made for {made_for}"));
    let reason = if context < usual {
        "there is little text, of which the held-out part must have a sequence".to_owned()
    } else if context < made_for {
        format!("the model was made for {made_for}, and memory grows with it")
    } else {
        "as many as the model was made for".to_owned()
    };
    draft.choose(format!("model.context = {context}: {reason}"));
}

fn set_adapters(draft: &mut Draft, full: bool) {
    if full {
        return draft.choose("all parameters are trained, as --full says");
    }
    draft.document.set(LoraSection::rank, RANK, "rank of the adapters, which alone are trained");
    draft.document.set(LoraSection::alpha, ALPHA, "their factor is alpha / rank");
    draft.choose(format!("lora.rank = {RANK}: adapters beside the frozen model; --full trains all of it"));
}

fn set_texts(draft: &mut Draft, found: &FoundData, options: &JobOptions) {
    let comment = match found.kind {
        DataKind::Chat => "conversations, of which the answers are learnt",
        DataKind::Preference => "pairs of answers, of which the first is preferred",
        DataKind::Tokens => "token shards",
        _ => "plain text",
    };
    draft.choose(format!("data.kind = \"{}\": {}", found.kind.name(), found.summary));
    draft.set_data(found.kind.name(), comment, &found.paths, options);
    if found.kind == DataKind::Preference {
        draft.document.set(Data::group_by_length, true, "steps of like lengths: less padding");
        draft.document.set(Preference::loss, "dpo", "or \"ipo\", \"orpo\"");
        draft.document.set(Preference::beta, 0.1, "larger: the model stays nearer to its start");
        draft.choose("preference.loss = \"dpo\": the usual loss of pairs");
    }
    draft.document.set(Data::validation_fraction, HELD_OUT, "part of the data that is held out");
}

/// Sets the tokenizer and chat template named on the command line.
///
/// # Errors
/// Messages have no chat template.
fn set_tokenizer(
    draft: &mut Draft,
    model: &str,
    folder: &ModelFolder,
    found: &FoundData,
    options: &JobOptions,
) -> Result<()> {
    let directories = &options.directories;
    match &options.tokenizer {
        Some(name) => {
            let path = tokenizer_for(name, options);
            draft.document.set(Data::tokenizer, path, "instead of the model's own");
        }
        None if folder.has_tokenizer => draft.choose(format!("tokenizer: tokenizer.json in {model}")),
        None if found.kind == DataKind::Tokens => {}
        None => draft.choose(format!(
            "tokenizer: bytes, because {model} has no tokenizer.json; --tokenizer names one"
        )),
    }
    if let Some(file) = &options.chat_template {
        let path = directories.for_configuration(&file.to_string_lossy());
        draft.document.set(Data::chat_template, path, "text that messages become");
        return Ok(());
    }
    let of_tokenizer = options.tokenizer.as_ref().map(|name| has_template(&directories.current().join(name)));
    if found.needs_template && !of_tokenizer.unwrap_or(folder.has_template) {
        return Err(RecipeError::Refused(format!(
            "{model}: it has no chat template (chat_template.jinja, or chat_template in \
             tokenizer_config.json), by which messages become text: --chat-template FILE names one"
        )));
    }
    Ok(())
}

/// Returns a built-in tokenizer's name, or a tokenizer's path relative to the configuration.
pub(crate) fn tokenizer_for(name: &str, options: &JobOptions) -> String {
    match data::Tokenizer::NAMES.contains(&name) {
        true => name.to_owned(),
        false => options.directories.for_configuration(name),
    }
}

/// Writes the fine-tuning defaults that affect learning.
///
/// # Errors
/// The configuration so far is invalid.
fn set_training(draft: &mut Draft, kind: DataKind, options: &JobOptions) -> Result<()> {
    let text = draft.document.to_toml();
    let directory = options.directories.of_configuration();
    let RunConfig { train, optim, .. } =
        RunConfig::parse_made(&text, "the new configuration", directory, &[])?;
    let epochs = if train.epochs > 0.0 { train.epochs } else { 1.0 };
    draft.document.set(Train::epochs, epochs, "passes over the data, which decide the steps");
    let unit = if kind == DataKind::Preference { "pairs" } else { "sequences" };
    draft.set_batch(unit, train.micro_batch_size, train.global_batch_size);
    let rate = optim.learning_rate;
    draft.document.set(Optim::learning_rate, rate, "highest rate; it falls along a cosine to 0");
    let warmup = "part of the steps in which the rate rises";
    draft.document.set(Optim::warmup_ratio, optim.warmup_ratio, warmup);
    draft.choose(format!("optim.learning_rate = {rate:e}: usual for such a job"));
    Ok(())
}
