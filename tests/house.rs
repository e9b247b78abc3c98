//! The house rules that a compiler does not know: the order of modules, where `unsafe` may be, how long a file may
//! get, and that kernel parameters say what they point at.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the bottom to the top: each names only those before it. A folder that is not taken apart is one module.
const ORDER: &str = "names format/layout format/scheme format/dtype format/operand format/codec epilogue error format/code_order format/given format/delayed format/mx format/nvfp4 format/fp8 format/recipe format/linear format/host format/pair format/cast format/host_cast format/grouped format/host_grouped models \
    reference checkpoint model_folder gpu/device gpu/lt gpu/kernels gpu/handle gpu/matrix gpu/cast gpu/clocks gpu/measure gpu/gemm gpu/grouped gpu/fused_gemm gpu/linear";

/// Files that only list modules and pass names on.
const FACADES: [&str; 3] = ["lib", "format/mod", "gpu/mod"];

const LONGEST_FILE: usize = 600;

fn root() -> PathBuf {
    // The bundle for GPU machines runs tests away from the sources.
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// Files under `folder` with one of these extensions, with their text.
fn files(folder: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, extensions: &[&str], found: &mut Vec<(PathBuf, String)>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for path in entries.map(|e| e.unwrap().path()) {
            if path.is_dir() {
                walk(&path, extensions, found);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), extensions, &mut found);
    found.sort();
    found
}

/// The code of a file of `src/`: no comments, and nothing from its tests on.
fn code(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.starts_with("mod tests {"));
    lines.map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// `gpu/lt/call` for `src/gpu/lt/call.rs`, `gpu/kernels` for `src/gpu/kernels/mod.rs`, with the code. Without tests.
fn sources() -> BTreeMap<String, String> {
    let name = |path: &Path| {
        let path = path.strip_prefix(root().join("src")).unwrap().with_extension("");
        path.to_str().unwrap().replace('\\', "/")
    };
    let all = files("src", &["rs"]).into_iter().map(|(path, text)| (name(&path), code(&text)));
    all.filter(|(name, _)| !name.ends_with("/tests")).collect()
}

/// The module of [`ORDER`] that a file or path belongs to.
fn module(path: &str) -> Option<&'static str> {
    ORDER.split(' ').find(|m| path == *m || path.strip_prefix(m).is_some_and(|rest| rest.starts_with('/')))
}

/// The paths after each `start`, as in `use start::{a::b, c}`: `a/b` and `c`.
fn paths(code: &str, start: &str) -> Vec<String> {
    fn expand(prefix: &str, text: &str, found: &mut Vec<String>) {
        let Some(open) = text.find('{') else {
            let path = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next().unwrap_or("");
            return found.push(format!("{prefix}{}", path.trim_end_matches(':').replace("::", "/")));
        };
        let head = format!("{prefix}{}", text[..open].replace("::", "/"));
        let (mut depth, mut from) = (0, open + 1);
        for (at, c) in text.char_indices().skip(open) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if (c == ',' && depth == 1) || depth == 0 {
                let item = text[from..at].trim();
                if !item.is_empty() {
                    expand(&head, item, found);
                }
                from = at + 1;
            }
            if depth == 0 {
                return;
            }
        }
    }
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{start}::")) {
        // `supersuper::` would be another word.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let text: String =
            code[at + start.len() + 2..].chars().take_while(|c| !";()<>&|=+-*.!#".contains(*c)).collect();
        let text: String = text.split_whitespace().collect();
        // A path ends where no brace follows it at once.
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
        expand("", if text[end..].starts_with('{') { &text } else { &text[..end] }, &mut found);
    }
    found
}

/// Where the names that facades pass on are defined: `Scheme` is `format/scheme`.
fn passed_on(sources: &BTreeMap<String, String>) -> BTreeMap<String, &'static str> {
    let mut names = BTreeMap::new();
    for facade in FACADES {
        let folder = facade.strip_suffix("mod").unwrap_or("");
        for line in sources[facade].split(';').filter(|l| l.contains("pub use ")) {
            let statement = line.split("pub use ").last().unwrap_or("");
            for path in paths(&format!("self::{statement}"), "self") {
                if let (Some(module), Some((_, name))) = (module(&format!("{folder}{path}")), path.rsplit_once('/')) {
                    names.insert(name.to_string(), module);
                }
            }
        }
    }
    names
}

/// Who names whom: module, other module, and the file and path that say so.
fn edges() -> Vec<(&'static str, &'static str, String)> {
    let sources = sources();
    let names = passed_on(&sources);
    let mut edges = Vec::new();
    for (file, code) in &sources {
        let Some(from) = module(file) else {
            assert!(FACADES.contains(&file.as_str()), "src/{file}.rs is not in ORDER: give it its place");
            continue;
        };
        let parent = file.trim_end_matches("/mod").rsplit_once('/').map_or("", |(parent, _)| parent);
        let absolute = paths(code, "crate");
        let relative = paths(code, "super").into_iter().map(|path| format!("{parent}/{path}"));
        for path in absolute.into_iter().chain(relative) {
            let name = path.rsplit('/').next().unwrap_or("");
            let known = module(&path).or_else(|| path.split('/').find_map(|part| names.get(part)).copied());
            // A path that stops at a folder is a visibility; `super::` inside a module taken whole stays in it.
            let folder = ["", "gpu", "format", "super", "Result"].contains(&name) || module(parent).is_some();
            match known {
                Some(to) if to != from => edges.push((from, to, format!("src/{file}.rs: {path}"))),
                Some(_) => {}
                None => assert!(folder, "src/{file}.rs names {path}, and no file of ORDER defines it"),
            }
        }
    }
    edges
}

/// False, with a word, where a packed test runs away from its sources.
fn has_sources() -> bool {
    let here = root().join("src/lib.rs").is_file();
    if !here {
        println!("skipped: no sources here");
    }
    here
}

#[test]
fn modules_name_only_those_below() {
    if !has_sources() {
        return;
    }
    let place = |module: &str| ORDER.split(' ').position(|m| m == module).unwrap();
    let edges = edges();
    assert!(edges.len() > 60, "only {} edges were read: the reader of this test is broken", edges.len());
    for (from, to, place_of_use) in &edges {
        assert!(place(to) < place(from), "{place_of_use}: {from} is below {to}");
    }
}

#[test]
fn unsafe_and_raw_bindings_stay_in_their_files() {
    if !has_sources() {
        return;
    }
    for (file, code) in sources() {
        let lt = module(&file) == Some("gpu/lt");
        let bytes = module(&file) == Some("gpu/kernels") || file.starts_with("gpu/device/memory/");
        let words = |word| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
        assert!(lt || bytes || !words("unsafe"), "src/{file}.rs has unsafe code");
        assert!(lt || !words("cublaslt_sys"), "src/{file}.rs names cublaslt_sys; only gpu/lt may");
    }
}

#[test]
fn no_file_is_too_long() {
    for folder in ["src", "sys", "cli", "engines", "kernels", "tests", "benches", "examples", "scripts", "fuzz"] {
        for (path, text) in files(folder, &["rs", "cu", "cuh", "py", "sh"]) {
            let lines = text.lines().count();
            let generated = path.ends_with("sys/src/bindings.rs");
            assert!(generated || lines <= LONGEST_FILE, "{}: {lines} lines, at most {LONGEST_FILE}", path.display());
        }
    }
}

#[test]
fn kernel_pointers_say_what_they_point_at() {
    for (path, text) in files("kernels", &["cu", "cuh"]) {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| line.contains("__restrict__")) {
            let comment = line.contains("//") || line.contains("/*");
            assert!(comment, "{}:{}: say element type, shape and layout: {line}", path.display(), at + 1);
        }
    }
}

/// Its code without comments and spaces: statements, in their order.
fn statements(code: &str) -> Vec<String> {
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(""));
    let together: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let parts = together.replace(",)", ")");
    parts.split_inclusive([';', '{', '}']).map(str::to_string).collect()
}

/// An example of the documentation that needs a GPU is compiled with it, and runs where a suite has the same lines.
#[test]
fn the_layer_of_experts_of_the_documentation_is_one_that_runs() {
    if !has_sources() {
        return;
    }
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let docs = read("docs/training.md");
    let section = docs.split("## A layer of experts").nth(1).expect("the section on experts");
    let example = section.split("```").nth(1).expect("its example");
    let example: String =
        example.lines().skip(1).filter(|line| !line.starts_with("# ")).map(|line| line.to_string() + "\n").collect();
    // Beside other tests, whose kernels are loaded meanwhile, a capture may have to be made again.
    let example = example.replace("handle.capture(step)", "capture_owned(&handle, step)");
    let test = statements(&read("tests/gpu_experts/layer.rs"));
    let of_example = statements(&example);
    // Two pieces without anything between their lines, so that neither says less than the other: between them the test writes numbers, behind them it launches, with others.
    let piece = |from: &str, to: &str| {
        let at = |what: &str| of_example.iter().position(|part| part.starts_with(what)).expect(what);
        &of_example[at(from)..=at(to)]
    };
    for piece in [piece("let(experts", "let(mutw,mutwt)"), piece("letplaces", "letstep=capture_owned")] {
        let is_there = test.windows(piece.len()).any(|lines| lines == piece);
        assert!(is_there, "tests/gpu_experts/layer.rs lacks these lines, or has others between them: {piece:#?}");
    }
    let launch = of_example.iter().find(|part| part.starts_with("handle.launch")).expect("a launch");
    assert!(test.contains(launch), "{launch}");
}
