//! Opens text and token data as configured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use config::{Data, DataKind, MixtureSource, RunConfig};
use data::{Component, Corpus, Documents, FileContents, Slice, Split, TokenOptions, TokenSource, Tokenizer};
use nn::Examples;
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use tokenize::Job;

use super::shapes::token_shapes;
use super::source::{CACHE, DataScope, Dataset};
use crate::error::{Result, WorkerError};

/// Opens the configured text or token files.
///
/// # Errors
/// The data is invalid; the error names the key.
pub(super) fn open(config: &RunConfig, scope: DataScope) -> Result<Dataset> {
    let data = &config.data;
    let train = &config.train;
    let is_read = scope == DataScope::All;
    // Its tokens are those that a tokenizer makes.
    let is_text = data.kind == DataKind::Text && config.tokenizer != Tokenizer::Bytes;
    let at = |key: &'static str| {
        let origin = config.origins.find(key);
        move |source: tokenize::Error| WorkerError::Data { origin, key, source }
    };
    let of_data = |key| move |source: data::Error| at(key)(source.into());
    let open_files = |patterns: &[String]| match data.kind {
        DataKind::Tokens => Ok(Corpus::open_shards(&data.base, patterns)?),
        _ => text_corpus(config, patterns, scope),
    };
    let split = |paths: &[String], validation_paths: &[String], key| {
        let training = Arc::new(open_files(paths).map_err(at(key))?);
        if validation_paths.is_empty() {
            let split = Split::at_end(training, data.validation_fraction);
            return split.map_err(of_data(Data::validation_fraction));
        }
        let validation = Arc::new(open_files(validation_paths).map_err(at(Data::validation_paths))?);
        Ok(Split { training: Slice::all(training), validation: Slice::all(validation) })
    };
    let components = if data.mixture.is_empty() {
        let split = split(&data.paths, &data.validation_paths, Data::paths)?;
        vec![Component { split, weight: 1.0 }]
    } else {
        let component = |source: &MixtureSource| -> Result<Component> {
            let split = split(&source.paths, &source.validation_paths, Data::mixture)?;
            Ok(Component { split, weight: source.weight })
        };
        data.mixture.iter().map(component).collect::<Result<_>>()?
    };
    let documents = config.separator().filter(|_| data.pack_documents || data.document_mask);
    if !is_read && (is_text || data.pack_documents) {
        return token_shapes(config, documents.is_some() && data.document_mask).map_err(of_data(Data::paths));
    }
    let vocabulary = match config.model.examples() {
        Examples::Tokens { vocabulary, .. } => vocabulary,
        Examples::Numbers { .. } | Examples::Images { .. } => config.tokenizer.vocabulary(),
    };
    let options = TokenOptions {
        context: config.model.examples().units(),
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        order: data.order,
        validation_micro_batches: train.validation_micro_batches,
        vocabulary,
        documents: documents.map(|separator| Documents {
            separator,
            packs: data.pack_documents,
            masks: data.document_mask,
            marks_tokens: config.masks_padding(),
        }),
        ignored: data.ignore,
    };
    let source =
        TokenSource::new(components, config.tokenizer.clone(), &options).map_err(of_data(Data::paths))?;
    Ok(Dataset::of_tokens(source, data.full_hash))
}

/// Opens text files as tokens, which are cached by the text's content. With `DataScope::Shapes`, opens their
/// bytes.
fn text_corpus(
    config: &RunConfig,
    patterns: &[String],
    scope: DataScope,
) -> std::result::Result<Corpus, tokenize::Error> {
    let data = &config.data;
    let tokenizer = &config.tokenizer;
    let text = Corpus::open(&data.base, patterns)?;
    text.check_plain()?;
    warn_of_json(&text);
    if *tokenizer == Tokenizer::Bytes || scope == DataScope::Shapes {
        return Ok(text);
    }
    let borders: Vec<u64> = text.starts().collect();
    let separator = config.separator();
    let contents = format!("{} {separator:?} {} {borders:?}", tokenizer.identity(), text.fingerprint()?);
    let cache = match data.cache.as_os_str().is_empty() {
        true => Path::new("runs").join(CACHE),
        false => data.cache.clone(),
    };
    let tokens = cache.join(hexadecimal(&Sha256::digest(contents)));
    if !tokens.exists() {
        if !system::output::is_writable(&cache) {
            let text =
                format!("{}: it cannot be written: data.cache names another directory", cache.display());
            return Err(tokenize::Error::Refused(text));
        }
        let files = text.files().map(Path::to_path_buf).collect();
        let job = Job::new(files, tokenizer.clone(), tokens.clone())?;
        let job = Job { show_progress: true, is_plain_text: true, has_hash: true, ..job };
        tokenize::tokenize(&Job { separator, ..job })?;
    }
    let (corpus, is_verified) = tokenize::open_verified(&tokens)?;
    if !is_verified {
        let tokens = tokens.display();
        tracing::warn!(
            "{tokens}: it cannot be verified: an earlier version wrote these tokens, without a hash"
        );
    }
    Ok(corpus)
}

/// Texts for which a warning was printed, because an evaluation opens its data several times.
static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Warns if a text consists of JSON, whose keys and braces become tokens too.
fn warn_of_json(text: &Corpus) {
    let instead = |path: &Path| {
        Some(match FileContents::from_file(path).ok()? {
            FileContents::Text => return None,
            FileContents::Conversations => "data.kind = \"chat\" takes them as conversations",
            FileContents::Pairs => "data.kind = \"preference\" takes them as pairs of answers",
            FileContents::Questions => "`plimsoll eval --choices` takes them as questions of multiple choice",
            FileContents::Texts => "`plimsoll tokenize` makes token shards of their texts",
            FileContents::Json => {
                "`plimsoll tokenize --text-key KEY` makes token shards of the texts of a key"
            }
        })
    };
    if let Some((path, instead)) = text.files().find_map(|path| Some((path, instead(path)?)))
        && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_path_buf())
    {
        tracing::warn!(
            "{}: it is JSON, of which data.kind = \"text\" takes keys and braces as text: {instead}",
            path.display()
        );
    }
}
