//! Sentences of README, CONTRIBUTING, ARCHITECTURE, `docs/` and `benches/notes/`: none is long, and none has
//! a phrase that makes a reader look for its noun.

use crate::house::{self, File};

/// The most words of a sentence.
const MOST_WORDS: usize = 30;

/// Phrases whose noun a reader must look for in an earlier sentence.
const PHRASES: [&str; 4] = ["those of", "the one that", "by which", "of which"];

fn is_page(path: &str) -> bool {
    let is_in_folder = ["docs/", "benches/notes/"].iter().any(|folder| path.starts_with(folder));
    is_in_folder && path.ends_with(".md")
        || ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].contains(&path)
}

/// A paragraph, an item of a list or a row of a table, without code spans and targets of links.
struct Paragraph {
    /// Number of its first line, from 1.
    line: usize,
    is_row: bool,
    text: String,
}

/// The paragraphs of a page. Fenced and indented code, headings and HTML are left out.
fn paragraphs(page: &str) -> Vec<Paragraph> {
    let mut paragraphs: Vec<Paragraph> = Vec::new();
    let mut is_open = false;
    let mut is_fenced = false;
    for (line, text) in (1..).zip(page.lines()) {
        let start = text.trim_start();
        is_fenced ^= start.starts_with("```");
        let is_code = is_fenced || start.starts_with("```") || text.starts_with("    ");
        if is_code || start.is_empty() || start.starts_with(['#', '<']) {
            is_open = false;
            continue;
        }
        let is_row = start.starts_with('|');
        let item = without_bullet(start);
        match paragraphs.last_mut() {
            Some(paragraph) if is_open && !is_row && item.is_none() => {
                paragraph.text.push(' ');
                paragraph.text.push_str(start);
            }
            _ => paragraphs.push(Paragraph { line, is_row, text: item.unwrap_or(start).to_owned() }),
        }
        is_open = !is_row;
    }
    paragraphs.into_iter().map(|paragraph| Paragraph { text: prose(&paragraph.text), ..paragraph }).collect()
}

/// Returns the text of a list's item, or `None` for another line.
fn without_bullet(line: &str) -> Option<&str> {
    let number = line.trim_start_matches(|character: char| character.is_ascii_digit());
    let numbered = number.strip_prefix(". ").filter(|_| number.len() < line.len());
    line.strip_prefix("* ").or_else(|| line.strip_prefix("- ")).or(numbered)
}

/// Replaces every code span by one word, and removes the targets of links.
fn prose(text: &str) -> String {
    let spans = text.split('`').enumerate();
    let text: String = spans.map(|(index, span)| if index % 2 == 0 { span } else { "code" }).collect();
    let mut links = text.split("](");
    let first = links.next().unwrap_or_default().to_owned();
    links.fold(first, |prose, link| prose + "]" + link.split_once(')').map_or(link, |(_, rest)| rest))
}

fn ends_sentence(word: &str) -> bool {
    word.trim_end_matches(['*', '_', ')', '"', '”']).ends_with(['.', '!', '?'])
}

/// Words in lower case, without punctuation.
fn plain_words(text: &str) -> String {
    let words = text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

fn complaints(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for File { path, text } in files.iter().filter(|file| is_page(&file.path)) {
        for Paragraph { line, is_row, text } in paragraphs(text) {
            let words = format!(" {} ", plain_words(&text));
            let phrases = PHRASES.iter().filter(|phrase| words.contains(&format!(" {phrase} ")));
            complaints.extend(phrases.map(|phrase| format!("{path}:{line}: \"{phrase}\": name the noun")));
            let words: Vec<&str> = text.split_whitespace().filter(|_| !is_row).collect();
            for sentence in words.split_inclusive(|word| ends_sentence(word)) {
                let count = sentence.iter().filter(|word| word.contains(char::is_alphanumeric)).count();
                if count > MOST_WORDS {
                    let start = sentence[..6].join(" ");
                    complaints.push(format!("{path}:{line}: {count} words in a sentence: {start} …"));
                }
            }
        }
    }
    complaints
}

#[test]
fn sentences_of_pages_are_short() {
    let complaints = complaints(&house::files());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_long_sentence_and_a_phrase_are_reported() {
    let long = "word ".repeat(MOST_WORDS);
    let page = |text: String| complaints(&[File { path: "docs/a.md".to_owned(), text }]).len();
    assert_eq!(page(format!("{long}more.\n")), 1, "31 words");
    assert_eq!(
        page(format!("* One.\n  Two {long}\n  `code that is one word`.\n")),
        1,
        "an item of two lines"
    );
    assert_eq!(page("The bits are those\nof it, and a way by which. None of whichever.\n".to_owned()), 2);
    assert_eq!(page("| the one that is in a cell |\n".to_owned()), 1);
    let short = format!("{long}. {long}\n\n# {long} {long}\n| {long} {long} |\n1. {long}\n2. {long}\n");
    assert_eq!(page(short), 0, "two sentences, a heading, a row and items");
    assert_eq!(page(format!("{long}[](a b c d).\n```text\n{long}{long}\n```\n    {long}{long}\n")), 0);
    let other = File { path: "benches/a.md".to_owned(), text: format!("{long}{long}") };
    assert!(complaints(&[other]).is_empty(), "not a page");
}
