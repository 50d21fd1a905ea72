//! Prompts from the command line and from files.

use data::Tokenizer;

use super::options::SampleOptions;
use run::{Result, RunError};

/// The prompt of one text.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) seed: u64,
    /// Index of the conversation turn.
    pub(super) turn: usize,
}

/// Default prompt.
const LINE_FEED: &str = "\n";
/// Maximum size of a prompt file in bytes.
const MOST_BYTES: u64 = 1 << 26;

/// Returns the prompts in the options, followed by the lines of the prompt file.
///
/// # Errors
/// The file cannot be read or is empty.
pub(super) fn texts(options: &SampleOptions) -> Result<Vec<String>> {
    let mut texts = options.prompts.clone();
    if let Some(path) = &options.prompt_file {
        let unreadable = |error| RunError::Refused(format!("--prompts {}: {error}", path.display()));
        let file = system::input::read_text(path, MOST_BYTES).map_err(unreadable)?;
        texts.extend(file.lines().filter(|line| !line.is_empty()).map(str::to_owned));
        if texts.is_empty() {
            return Err(RunError::Refused(format!("--prompts {}: it has no prompt", path.display())));
        }
    }
    Ok(texts)
}

/// Returns all prompts with their seeds: encoded `texts` or conversations, then prompts of tokens.
///
/// # Errors
/// A prompt is empty or has tokens unknown to the model, or there are more seeds than prompts.
pub(super) fn read(
    options: &SampleOptions,
    mut texts: Vec<String>,
    tokenizer: &Tokenizer,
    conversations: Option<Vec<(String, Vec<u32>)>>,
    vocabulary: usize,
    own_seed: u64,
) -> Result<Vec<Prompt>> {
    if texts.is_empty() && options.prompt_tokens.is_empty() {
        texts.push(LINE_FEED.to_owned());
    }
    let mut prompts_with_tokens = match conversations {
        Some(conversations) => conversations,
        None => {
            let encode = |text: String| Ok((text.clone(), tokenizer.encode_prompt(&text)?));
            texts.into_iter().map(encode).collect::<Result<_>>()?
        }
    };
    prompts_with_tokens
        .extend(options.prompt_tokens.iter().map(|tokens| (tokenizer.decode(tokens), tokens.clone())));
    let prompts = prompts_with_tokens.len();
    if options.seeds.len() > prompts {
        let seeds = options.seeds.len();
        return Err(RunError::Refused(format!("--seed: {seeds} seeds for {prompts} prompts")));
    }
    let seed = |index: usize| match options.seeds.last() {
        None => own_seed.wrapping_add(index as u64),
        Some(last) => options
            .seeds
            .get(index)
            .copied()
            .unwrap_or_else(|| last.wrapping_add((index + 1 - options.seeds.len()) as u64)),
    };
    let from_texts = prompts - options.prompt_tokens.len();
    let prompt = |(index, (text, tokens)): (usize, (String, Vec<u32>))| {
        let option = if index < from_texts { "--prompt" } else { "--prompt-tokens" };
        check_tokens(option, &tokens, tokenizer, vocabulary)?;
        Ok(Prompt { text, tokens, seed: seed(index), turn: 0 })
    };
    prompts_with_tokens.into_iter().enumerate().map(prompt).collect()
}

fn check_tokens(option: &str, tokens: &[u32], tokenizer: &Tokenizer, vocabulary: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(RunError::Refused(format!("{option}: a sample goes on from at least one token")));
    }
    let checked = tokenizer.check_tokens(tokens, vocabulary);
    checked.map_err(|reason| RunError::Refused(format!("{option}: {reason}")))
}

/// Refuses prompts that are longer than the model's context.
pub(super) fn check(prompts: &[Prompt], context: usize) -> Result<()> {
    match prompts.iter().position(|prompt| prompt.tokens.len() > context) {
        None => Ok(()),
        Some(index) => Err(RunError::Refused(format!(
            "--prompt: number {} has {} tokens, more than the model's context of {context}",
            index + 1,
            prompts[index].tokens.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_without_tokens_and_with_unknown_ones_are_refused() {
        check_tokens("--prompt", &[104, 105], &Tokenizer::Bytes, 256).unwrap();
        for (prompt, vocabulary) in [(&[][..], 256), (&[104, 105], 105)] {
            let error = check_tokens("--prompt", prompt, &Tokenizer::Bytes, vocabulary).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            assert!(error.to_string().contains("--prompt"), "{error}");
        }
    }

    #[test]
    fn every_prompt_has_a_seed() {
        let seeds = |prompts_with_tokens: &[u64]| -> Vec<u64> {
            let prompts = ["a", "b", "c"].map(str::to_owned).to_vec();
            let options =
                SampleOptions { prompts, seeds: prompts_with_tokens.to_vec(), ..SampleOptions::default() };
            let texts = texts(&options).unwrap();
            let read = read(&options, texts, &Tokenizer::Bytes, None, 256, 40).unwrap();
            read.iter().map(|prompt| prompt.seed).collect()
        };
        assert_eq!(seeds(&[]), [40, 41, 42]);
        assert_eq!(seeds(&[7]), [7, 8, 9]);
        assert_eq!(seeds(&[7, 3]), [7, 3, 4]);
        assert_eq!(seeds(&[7, 3, 7]), [7, 3, 7]);
    }
}
