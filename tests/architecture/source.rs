//! A lexer of Rust source that separates code from comments and literals.

/// Replaces comments and the contents of literals by spaces, keeping line breaks and therefore line numbers.
pub(crate) fn code_of(source: &str) -> String {
    let characters: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < characters.len() {
        let length = skipped(&characters, at);
        for character in &characters[at..at + length.max(1)] {
            code.push(if length == 0 || *character == '\n' { *character } else { ' ' });
        }
        at += length.max(1);
    }
    code
}

/// Returns the length in characters of the comment or literal at `at`; 0 for code.
fn skipped(characters: &[char], at: usize) -> usize {
    let rest = &characters[at..];
    let inside_word = at > 0 && is_word(characters[at - 1]);
    match rest {
        ['/', '/', ..] => until(rest, |rest| rest[0] == '\n'),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => 1 + quoted(&rest[1..]),
        ['\'', '\\', _, tail @ ..] => 3 + until(tail, |rest| rest[0] == '\'') + 1,
        ['\'', _, '\'', ..] => 3,
        ['r', '#' | '"', ..] if !inside_word => raw_string(rest, 1),
        ['b' | 'c', 'r', '#' | '"', ..] if !inside_word => raw_string(rest, 2),
        _ => 0,
    }
    .min(rest.len())
}

/// Returns the number of characters before the first position at which `end` holds, or of all characters.
fn until(rest: &[char], end: impl Fn(&[char]) -> bool) -> usize {
    (0..rest.len()).find(|at| end(&rest[*at..])).unwrap_or(rest.len())
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a string after its opening quote, including the closing quote.
fn quoted(rest: &[char]) -> usize {
    let mut at = 0;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// Returns the length of a raw string whose prefix has `prefix` letters; 0 for a raw identifier.
fn raw_string(rest: &[char], prefix: usize) -> usize {
    let hashes = until(&rest[prefix..], |rest| rest[0] != '#');
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return 0;
    }
    let closes =
        |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes;
    open + 1 + until(&rest[open + 1..], closes) + 1 + hashes
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the number (from 1) of the first line of `code` that contains `term` as whole words; `*term*`
/// matches anywhere.
pub(crate) fn line_of(code: &str, term: &str) -> Option<usize> {
    let anywhere = term.strip_prefix('*').and_then(|term| term.strip_suffix('*'));
    let word = anywhere.unwrap_or(term);
    let is_whole = |at: usize| {
        let before = code[..at].chars().next_back().is_some_and(is_word) && word.starts_with(is_word);
        let after = code[at + word.len()..].chars().next().is_some_and(is_word) && word.ends_with(is_word);
        !before && !after
    };
    let (at, _) = code.match_indices(word).find(|(at, _)| anywhere.is_some() || is_whole(*at))?;
    Some(1 + code[..at].matches('\n').count())
}

#[test]
fn comments_and_literals_are_removed() {
    let table = [
        ("let a = 1; // unsafe", "let a = 1;"),
        ("/* a /* unsafe */ b */ f()", "f()"),
        ("/// unsafe\nfn f() {}", "fn f() {}"),
        (r#"f("unsafe \" unsafe", g)"#, "f( , g)"),
        (r##"f(r#"unsafe " unsafe"#, g)"##, "f( , g)"),
        (r#"f(br"unsafe\", g)"#, "f( , g)"),
        ("let r#type = 'x'; g('\\'', '\"')", "let r#type = ; g( , )"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("\"never closed", ""),
        ("'\\u{1F600}'.len()", ".len()"),
    ];
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (source, code) in table {
        assert_eq!(squeezed(&code_of(source)), code, "{source}");
    }
    assert_eq!(line_of(&code_of("\"a\nb\"\nunsafe {}"), "unsafe"), Some(3));
}

#[test]
fn terms_are_whole_words_unless_starred() {
    let table = [
        ("forbid(unsafe_code)", "unsafe", None),
        ("{ unsafe { f() } }", "unsafe", Some(1)),
        ("let operand = 1;", "rand", None),
        ("use std::time::Instant;", "std::time", Some(1)),
        ("fn to_cuda_stream()", "cuda", None),
        ("\nfn to_cuda_stream()", "*cuda*", Some(2)),
    ];
    for (code, term, line) in table {
        assert_eq!(line_of(code, term), line, "{term} in {code}");
    }
}
