//! Counts vague everyday words that once stood for indices, options and messages, and doc comments whose
//! first word refers to something not named yet.

use crate::house::{self, File};

/// Words that hide which technical term is meant.
const WORDS: [&str; 9] = ["place", "placed", "places", "placing", "given", "said", "told", "heard", "hears"];

/// Parts of identifiers with the same fault.
const PARTS: [&str; 5] = ["pass_over", "passed_over", "passing", "give_weights", "let_go"];

/// First words of doc comments that refer to something not named yet.
const OPENINGS: [&str; 11] =
    ["Those", "That", "What", "Its", "It", "Has", "When", "Whose", "They", "These", "Which"];

/// Number of remaining uses of these words. A change may only lower it.
const LEFT: usize = 93;

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    words: usize,
    openings: usize,
}

/// Path of this file, which is not counted.
const OWN: &str = "tests/architecture/words.rs";

fn counts(files: &[File]) -> Counts {
    let mut counts = Counts::default();
    for File { path, text } in files.iter().filter(|file| file.path != OWN && is_prose_or_code(&file.path)) {
        counts.words += words(text).filter(|word| WORDS.contains(&word.as_str())).count();
        counts.words += PARTS.iter().map(|part| text.matches(part).count()).sum::<usize>();
        counts.openings += if path.ends_with(".rs") { openings(text) } else { 0 };
    }
    counts
}

/// Returns whether a file is source, a kernel, a script or a page. The changelog is excluded because it
/// quotes the past.
fn is_prose_or_code(path: &str) -> bool {
    let ends = [".rs", ".cu", ".cuh", ".md"].iter().any(|end| path.ends_with(end));
    (ends || path.starts_with("launch/")) && path != "CHANGELOG.md" && !path.starts_with("tests/golden/")
}

/// Splits a text into lower-case words, also within names: `givenPlace` and `given_place` have two each.
fn words(text: &str) -> impl Iterator<Item = String> {
    let runs = text.split(|character: char| !character.is_ascii_alphabetic());
    runs.flat_map(|run| {
        let mut words: Vec<String> = Vec::new();
        for (index, character) in run.char_indices() {
            let after_lower = index > 0 && run.as_bytes()[index - 1].is_ascii_lowercase();
            match words.last_mut() {
                Some(word) if !(character.is_ascii_uppercase() && after_lower) => word.push(character),
                _ => words.push(character.to_string()),
            }
        }
        words.into_iter().map(|word| word.to_ascii_lowercase())
    })
}

/// Counts doc comments and error sections whose first word is one of [`OPENINGS`].
fn openings(text: &str) -> usize {
    let is_comment = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let continues = |line: &str| is_comment(line) && !line.ends_with(" # Errors");
    let starts = lines.iter().enumerate().filter(|(index, line)| {
        is_comment(line) && !index.checked_sub(1).is_some_and(|before| continues(lines[before]))
    });
    let first = |line: &str| line[3..].split_whitespace().next().map(str::to_owned).unwrap_or_default();
    starts.filter(|(_, line)| OPENINGS.contains(&first(line).as_str())).count()
}

#[test]
fn private_words_only_get_fewer() {
    let counts = counts(&house::files());
    let fewer = counts.words <= LEFT && counts.openings == 0;
    assert!(fewer, "{counts:?}, of {LEFT} words and no opening; see the style in CONTRIBUTING.md");
}

#[test]
fn words_of_names_are_counted() {
    let text =
        "/// Those of it.\n/// That.\nlet placeGiven = a_place; // replaced\n/// # Errors\n/// It fails.\n";
    let files = [File { path: "a.rs".to_owned(), text: text.to_owned() }];
    assert_eq!(counts(&files), Counts { words: 3, openings: 2 });
}

/// Phrases after which a reader has to look back for what is meant.
const PHRASES: [&str; 5] = ["those of", "by which", "of which", "the one that", "the ones that"];

/// Uses of habits that are left in Rust sources: [`PHRASES`], functions and closures named `of`, and tuples
/// that bind unrelated values. A change may only lower the numbers.
const HABITS_LEFT: [usize; 3] = [122, 3, 80];

fn habits(text: &str) -> [usize; 3] {
    let lower = text.to_ascii_lowercase();
    let phrases = PHRASES.iter().map(|phrase| lower.matches(phrase).count()).sum();
    let names = ["fn of(", "fn of<", "let of ="].iter().map(|name| text.matches(name).count()).sum();
    let tuples = text.lines().map(str::trim_start);
    // Patterns with a capital letter match variants.
    let binds = |names: &str| !names.contains(|character: char| character.is_ascii_uppercase());
    let bound = |line: &str| {
        line.strip_prefix("let (")
            .and_then(|rest| rest.split_once(") = ("))
            .is_some_and(|(names, _)| binds(names))
    };
    let tuples = tuples.filter(|line| bound(line)).count();
    [phrases, names, tuples]
}

#[test]
fn habits_only_get_fewer() {
    let mut sums = [0; 3];
    for File { text, .. } in
        house::files().iter().filter(|file| file.path.ends_with(".rs") && file.path != OWN)
    {
        sums.iter_mut().zip(habits(text)).for_each(|(sum, count)| *sum += count);
    }
    let fewer = sums.iter().zip(HABITS_LEFT).all(|(sum, left)| *sum <= left);
    assert!(
        fewer,
        "{sums:?}, of {HABITS_LEFT:?} phrases, names and tuples; see the style in CONTRIBUTING.md"
    );
    let text =
        "/// Those of it, by which it is.\nfn of(x: u8) {}\n    let (a, b) = (x, y);\nlet (a, b) = f();\n";
    assert_eq!(habits(text), [2, 1, 1]);
}

/// Returns doc lines that list errors within a paragraph instead of under `# Errors`.
fn inline_errors(File { path, text }: &File) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|_| path.ends_with(".rs"));
    let inline = lines.filter(|(_, line)| {
        let line = line.trim_start();
        (line.starts_with("///") || line.starts_with("//!")) && line.contains("Errors: ")
    });
    inline.map(|(number, _)| format!("{path}:{}: errors belong under `# Errors`", number + 1)).collect()
}

#[test]
fn errors_are_listed_in_one_style() {
    let errors: Vec<_> = house::files().iter().flat_map(inline_errors).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    let text = "/// A sum. Errors: none.\n/// # Errors\n/// None.\n// Errors: none\n".to_owned();
    assert_eq!(inline_errors(&File { path: "a.rs".to_owned(), text }).len(), 1);
}
