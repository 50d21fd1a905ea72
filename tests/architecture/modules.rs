//! Finds the modules of each crate and their imports, from `use` paths and paths that begin with `crate`,
//! `self` or `super`, and checks that the graph between them has no cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::house::File;
use crate::source::code_of;

/// Path of a module from its crate's root; empty for the root.
type Module = Vec<String>;

/// The modules of one crate: their code, and their re-exported names with the original paths.
struct Modules {
    code: BTreeMap<Module, String>,
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// Whether importing a re-exported name counts as importing the original module, instead of the
    /// re-exporting one.
    looks_behind: bool,
}

impl Modules {
    /// Reads the modules of the crate with sources in `folder`, which ends with `/`. Test modules are left
    /// out.
    fn read(folder: &str, files: &[File], looks_behind: bool) -> Self {
        let mut code = BTreeMap::new();
        for file in files {
            let Some(name) = file.path.strip_prefix(folder).and_then(|path| path.strip_suffix(".rs")) else {
                continue;
            };
            let mut module: Module = name.split('/').map(str::to_owned).collect();
            if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
                module.pop();
            }
            if !module.iter().any(|part| part == "tests") {
                let text = code_of(&file.text);
                let tested = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
                code.insert(module, text[..tested].to_owned());
            }
        }
        let exports = code.iter().map(|(module, text)| (module.clone(), exports(text))).collect();
        Modules { code, exports, looks_behind }
    }

    /// Returns the module to which a path in module `from` refers, following re-exports; `None` for other
    /// crates.
    fn target(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let mut path = path;
        let mut at = from.clone();
        match path.first()?.as_str() {
            "crate" => (at, path) = (Module::new(), &path[1..]),
            "self" => path = &path[1..],
            "super" => {
                while path.first().is_some_and(|part| part == "super") {
                    at.pop();
                    path = &path[1..];
                }
            }
            child if self.has(from, child) => {}
            _ => return None,
        }
        while let Some(child) = path.first().filter(|child| self.has(&at, child)) {
            at.push(child.clone());
            path = &path[1..];
        }
        let exported = path.first().and_then(|name| self.exports.get(&at)?.get(name));
        match exported.filter(|_| self.looks_behind && depth < 8) {
            Some(behind) => self.target(&at, behind, depth + 1).or(Some(at)),
            None => Some(at),
        }
    }

    fn has(&self, parent: &Module, child: &str) -> bool {
        let mut module = parent.clone();
        module.push(child.to_owned());
        self.code.contains_key(&module)
    }

    /// Returns the imports of each module.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let imports_of = |module: &Module, text: &str| {
            let uses =
                uses(text).into_iter().filter(|(exported, _)| !exported).flat_map(|(_, tree)| expand(&tree));
            let all = uses.chain(inline_paths(text));
            let targets = all.filter_map(|path| self.target(module, &path, 0));
            targets.filter(|target| target != module && self.code.contains_key(target)).collect()
        };
        self.code.iter().map(|(module, text)| (module, imports_of(module, text))).collect()
    }
}

/// Returns the names that `use` re-exports, with their paths.
fn exports(text: &str) -> BTreeMap<String, Vec<String>> {
    let paths = uses(text).into_iter().filter(|(exported, _)| *exported).flat_map(|(_, tree)| expand(&tree));
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// Returns every `use` of a text: whether it has a visibility, and its tree.
fn uses(text: &str) -> Vec<(bool, String)> {
    let mut trees = Vec::new();
    for statement in text.split_inclusive(';') {
        let Some(end) = statement.strip_suffix(';') else { continue };
        let line = end.rfind("use ").filter(|at| {
            let before = end[..*at].trim_end();
            before.is_empty() || before.ends_with(['}', ']', '{', ')']) || before.ends_with("pub")
        });
        let Some(at) = line else { continue };
        let before = end[..at].trim_end();
        let exported = before.ends_with("pub") || before.ends_with(')') && before.contains("pub(");
        trees.push((exported, end[at + 4..].split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    trees
}

/// Expands a `use` tree into paths: `a::{b, c::d}` becomes `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let parts = |text: &str| -> Vec<String> {
        let named = text.split(" as ").next().unwrap_or_default();
        named.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, rest)) = tree.split_once('{') else { return vec![parts(tree)] };
    let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
    let mut depth = 0;
    let mut start = 0;
    let mut branches = Vec::new();
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&inside[start..]);
    let branches = branches.into_iter().filter(|branch| !branch.trim().is_empty()).flat_map(expand);
    branches.map(|branch| [parts(head), branch].concat()).collect()
}

/// Returns paths outside of `use` that begin in this crate, or with a lower-case word, which may be a child
/// module.
fn inline_paths(text: &str) -> Vec<Vec<String>> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let code: String = text.split(';').filter(|part| !part.trim_start().contains("use ")).collect();
    let words = code.split(|c: char| !is_path(c)).filter(|word| word.contains("::"));
    let small = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    words.filter(small).map(|word| expand(word.trim_matches(':'))).map(|mut paths| paths.remove(0)).collect()
}

/// Returns the cycles between a crate's modules, each as the names of its modules. Re-exported names are
/// counted both ways, for the original and for the re-exporting module.
pub(crate) fn cycles(folder: &str, files: &[File]) -> Vec<String> {
    let mut cycles = BTreeSet::new();
    for looks_behind in [true, false] {
        cycles.extend(cycles_of(folder, &Modules::read(folder, files, looks_behind)));
    }
    cycles.into_iter().collect()
}

fn cycles_of(folder: &str, modules: &Modules) -> BTreeSet<String> {
    let imports = modules.imports();
    let reaches = |from: &Module| -> BTreeSet<Module> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(module) = open.pop() {
            for target in imports.get(&module).into_iter().flatten() {
                if seen.insert(target.clone()) {
                    open.push(target.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (*module, reaches(module))).collect();
    let mut cycles = BTreeSet::new();
    for (module, targets) in reached.iter().filter(|(module, targets)| targets.contains(**module)) {
        let back = targets.iter().filter(|other| reached.get(other).is_some_and(|all| all.contains(*module)));
        let names: Vec<String> = back.map(|other| format!("crate::{}", other.join("::"))).collect();
        cycles.insert(format!("{folder}: {} import each other", names.join(", ")));
    }
    cycles
}

#[test]
fn a_cycle_is_found_through_parents_children_and_re_exports() {
    let file = |path: &str, text: &str| File { path: format!("one/{path}"), text: text.to_owned() };
    let count_cycles = |files: &[File]| cycles("one/", files).len();
    let root = || file("lib.rs", "mod a;\nmod b;\npub use a::A;");
    assert_eq!(count_cycles(&[root(), file("a.rs", "pub struct A;"), file("b.rs", "use crate::A;")]), 0);
    assert_eq!(
        count_cycles(&[
            root(),
            file("a.rs", "use crate::b::B; pub struct A;"),
            file("b.rs", "use crate::A;")
        ]),
        1
    );
    let inline = file("a.rs", "pub struct A; fn f() { crate::b::g() }");
    assert_eq!(count_cycles(&[root(), inline, file("b.rs", "use super::a::{A, C};")]), 1);
    let child = file("a/c.rs", "use super::A;");
    assert_eq!(count_cycles(&[root(), file("a.rs", "mod c; pub struct A;"), child]), 0);
    let child = file("a/c.rs", "use super::A; pub fn f() {}");
    assert_eq!(count_cycles(&[root(), file("a.rs", "mod c; pub struct A; fn g() { c::f() }"), child]), 1);
    let tests = file("a.rs", "pub struct A;\n#[cfg(test)]\nmod tests {\n use crate::b::B; }");
    assert_eq!(count_cycles(&[root(), tests, file("b.rs", "use crate::A; // use crate::b")]), 0);
}
