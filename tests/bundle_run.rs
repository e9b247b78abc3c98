//! `scripts/bundle-run.sh`, which runs the suites on a GPU machine, on suites and sanitizers that are scripts: what counts as a failure, and what is said.
//! And what other scripts say before they begin to work.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// An unpacked bundle, of suites that do what is written here.
struct Bundle(TempDir);

fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Says under which tool it runs which tests of a suite, and then what the file of this name has; memcheck's summary has no errors where there is none. One test passes, unless another file has other words.
const SANITIZER: &str = r#"#!/bin/sh
tool=$4
options=$*
while [ "${1#tests/}" = "$1" ]; do shift; done
suite=${1#tests/}
echo "ran $tool $suite"
shift 3
echo "ran $tool $suite $*" >>"$REPORTS/ran"
echo "$tool $suite: ${options%% tests/*}" >>"$REPORTS/options"
if [ -f "$REPORTS/$tool-$suite" ]; then cat "$REPORTS/$tool-$suite"; else echo "========= ERROR SUMMARY: 0 errors"; fi
if [ -f "$REPORTS/passed-$suite" ]; then cat "$REPORTS/passed-$suite"; else echo "test result: ok. 1 passed; 0 failed"; fi
if [ -f "$REPORTS/status-$suite" ]; then exit "$(cat "$REPORTS/status-$suite")"; fi
"#;

impl Bundle {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/bundle-run.sh");
        fs::copy(script, folder.path().join("run.sh")).unwrap();
        executable(&folder.path().join("bin/compute-sanitizer"), SANITIZER);
        fs::create_dir_all(folder.path().join("tests")).unwrap();
        fs::create_dir_all(folder.path().join("reports")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn suite(&self, name: &str, text: &str) {
        executable(&self.path("tests").join(name), &format!("#!/bin/sh\n{text}\n"));
    }

    /// What a tool reports of a suite.
    fn report(&self, tool: &str, suite: &str, text: &str) {
        fs::write(self.path("reports").join(format!("{tool}-{suite}")), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command
            .arg(self.path("run.sh"))
            .args(arguments)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("REPORTS", self.path("reports"))
            .env("OUT", self.path("out"))
            .current_dir(self.0.path());
        command
    }

    /// Whether it succeeds, and what it says.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.command(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.success(), text)
    }
}

/// Before anything is unpacked: a word that it does not know, and where there is nothing to unpack.
#[test]
fn what_cannot_run_is_said_before_anything_is_unpacked() {
    let bundle = Bundle::new();
    fs::remove_dir(bundle.path("tests")).unwrap();
    let says = |arguments: &[&str]| {
        let output = bundle.command(arguments).output().unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|words| String::from_utf8(words).unwrap());
        (output.status.code(), out, error)
    };
    // Neither of these is unpacked.
    for archive in [None, Some("no archive")] {
        if let Some(text) = archive {
            fs::write(bundle.path("bundle.tar.xz"), text).unwrap();
        }
        for word in ["--help", "-h"] {
            let (code, out, error) = says(&[word]);
            assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
            assert!(out.starts_with("usage: run.sh test [NAME...] | ") && out.lines().count() == 1, "{out}");
        }
        let (code, out, error) = says(&["tests"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with("usage: run.sh test [NAME...] | ") && error.lines().count() == 1, "{error}");
    }
    fs::remove_file(bundle.path("bundle.tar.xz")).unwrap();
    for arguments in [&[][..], &["test"], &["where"]] {
        let (code, out, error) = says(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert!(
            error.contains("/bundle.tar.xz is not there: ")
                && error.contains("scripts/bundle.sh")
                && error.lines().count() == 1,
            "{error}"
        );
    }
    assert!(!bundle.path("out").exists());
}

/// What racecheck says of two accesses.
fn race(first: &str, second: &str) -> String {
    format!(
        "========= Error: Race reported between Read access at {first}+0x2c70\n\
         =========     and Write access at {second}+0x1f30 [512 hazards]\n\
         =========\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    )
}

#[test]
fn known_races_are_said_and_any_other_counts() {
    let bundle = Bundle::new();
    let known = "gemm_fp8_block_256x128";
    bundle.report("racecheck", "gpu_sm90", &race(known, known));
    bundle.report(
        "racecheck",
        "gpu_sm90_e5m2",
        &(race("gemm_e5m2_e4m3_block_64x64_two", "gemm_e5m2_e4m3_block_64x64_two")
            + &race("gemm_e4m3_e5m2_block_a_256x128", "gemm_fp8_vector_128x128")),
    );
    // Kernels of the library never count.
    bundle.report("racecheck", "gpu_gemm", &race("sm90_xmma_gemm", "sm90_xmma_gemm"));
    let (green, text) = bundle.run(&["sanitize", "racecheck"]);
    assert!(green, "{text}");
    let of_sm90 =
        "known   gemm_(fp8|e5m2_e4m3|e4m3_e5m2)_(block|block_a|plain|vector|vector_fp32)_[0-9]+x[0-9]+(_two|_k2)?";
    assert!(text.contains(&format!("{of_sm90}: 6 lines: one lane")), "{text}");
    assert!(text.contains("GONE    gemm_small_m_(gated_)?(block|outer)_[0-9]+_two: no report any more"), "{text}");
    assert!(!text.contains("FAILED"), "{text}");
    bundle.report("racecheck", "gpu_small_m", &race("gemm_small_m_block_8_two", "gemm_small_m_block_8_two"));
    bundle.report("racecheck", "gpu_small_m_gated", &race("gemm_small_m_gated_block_32_two", known));
    bundle.report("racecheck", "gpu_small_m_groups", &race("gemm_small_m_outer_8_two", "gemm_small_m_outer_8_two"));
    let (green, text) = bundle.run(&["sanitize", "racecheck"]);
    assert!(green && !text.contains("GONE"), "{text}");
    assert!(text.contains("_two: 5 lines: parts of sums"), "{text}");

    // The same kernel of groups, another, both in one report, and another tool.
    for (first, second) in [
        ("gemm_fp8_block_256x128_grouped", "gemm_fp8_block_256x128_grouped"),
        (known, "gemm_fp8_outer_128x128"),
        ("gemm_small_m_block_8_one_deep", known),
        ("gemm_fp8_codes_256x128", known),
    ] {
        bundle.report("racecheck", "gpu_fused_gemm", &race(first, second));
        let (green, text) = bundle.run(&["sanitize", "racecheck"]);
        assert!(!green && text.contains("FAILED  gpu_fused_gemm"), "{text}");
        assert_eq!(text.matches("FAILED").count(), 1, "{text}");
        let other = if first == known { second } else { first };
        assert!(text.lines().any(|line| line.contains(&format!("access at {other}+"))), "{other} is not in {text}");
    }
    bundle.report("racecheck", "gpu_fused_gemm", "");
    bundle.report("synccheck", "gpu_sm90", &race(known, known));
    let (green, text) = bundle.run(&["sanitize", "racecheck", "synccheck"]);
    assert!(!green && text.contains("FAILED  gpu_sm90\n"), "{text}");
}

#[test]
fn suites_run_under_the_tools_that_look_at_them() {
    let bundle = Bundle::new();
    let (green, text) = bundle.run(&["sanitize"]);
    assert!(green, "{text}");
    let ran = fs::read_to_string(bundle.path("reports/ran")).unwrap();
    let of =
        |tool: &str, suite: &str| ran.lines().filter(|line| line.starts_with(&format!("ran {tool} {suite} "))).count();
    for suite in
        ["gpu_sm90_e5m2", "gpu_chains", "gpu_batch_invariant", "gpu_quantize_a", "gpu_cast_captures", "gpu_amax"]
    {
        let found = ["memcheck", "racecheck", "synccheck", "initcheck"].map(|tool| of(tool, suite));
        assert_eq!(found, [1; 4], "{suite}\n{ran}");
    }
    let found = ["memcheck", "racecheck", "synccheck", "initcheck"].map(|tool| of(tool, "gpu_producer_shapes"));
    assert_eq!(found, [1, 0, 1, 1], "{ran}");
    for suite in ["gpu_two_gpus", "gpu_idle_experts", "gpu_overlap", "gpu_cast_refusals", "gpu_cast_floors"] {
        assert_eq!(["memcheck", "racecheck"].map(|tool| of(tool, suite)), [1, 0], "{suite}\n{ran}");
    }
    // Each kernel of E5M2 codes, of groups as well; casts by thresholds.
    for tool in ["memcheck", "racecheck", "synccheck", "initcheck"] {
        for (suite, word) in [
            ("gpu_sm90_e5m2", "groups_are"),
            ("gpu_experts_gradient", "gradients_in_e5m2"),
            ("gpu_cast_shapes", "every_code"),
        ] {
            let line = ran.lines().find(|line| line.starts_with(&format!("ran {tool} {suite} "))).unwrap();
            assert!(line.split(' ').any(|one| one == word), "no {word} in {line}");
        }
    }
    let line = ran.lines().find(|line| line.starts_with("ran memcheck gpu_producer_shapes ")).unwrap();
    assert!(line.ends_with(" swiglu_to_every_recipe"), "{line}");
    let options = fs::read_to_string(bundle.path("reports/options")).unwrap();
    let silent: Vec<_> = options.lines().filter(|line| line.contains("--report-api-errors")).collect();
    let all = "memcheck gpu_idle_experts: --target-processes all --tool memcheck --report-api-errors no";
    assert_eq!(silent, [all]);
    // A suite that ends without a word, and one with an error that names no kernel.
    for (suite, report) in [("gpu_chains", "========= ERROR SUMMARY: 3 errors\n"), ("gpu_sm90", "")] {
        bundle.report("memcheck", suite, report);
        let (green, text) = bundle.run(&["sanitize", "memcheck"]);
        assert!(!green && text.contains(&format!("FAILED  {suite}\n")), "{text}");
    }
    assert!(!bundle.run(&["sanitize", "gpu_sm90"]).0, "a suite is no tool");
}

/// Tests in processes of their own have results of their own: of those one with a test counts, and one that failed.
#[test]
fn a_sanitizer_run_is_of_tests_that_ran() {
    let bundle = Bundle::new();
    let [none, one, failed] = ["ok. 0 passed; 0 failed", "ok. 1 passed; 0 failed", "FAILED. 4 passed; 1 failed"]
        .map(|x| format!("test result: {x}\n"));
    for (passed, is_green) in [
        (none.clone(), false),
        (none.clone() + &one, true),
        (one.clone() + &none, true),
        (one + &failed, false),
        (String::new(), false),
    ] {
        fs::write(bundle.path("reports/passed-gpu_idle_experts"), &passed).unwrap();
        let (green, text) = bundle.run(&["sanitize", "memcheck"]);
        assert_eq!(green, is_green, "{passed:?}\n{text}");
        assert_eq!(text.contains("FAILED  gpu_idle_experts\n"), !is_green, "{passed:?}\n{text}");
    }
    // As `timeout` ends what it killed, behind a test in a process of its own that passed.
    fs::remove_file(bundle.path("reports/passed-gpu_idle_experts")).unwrap();
    fs::write(bundle.path("reports/status-gpu_idle_experts"), "124").unwrap();
    let (green, text) = bundle.run(&["sanitize", "memcheck"]);
    assert!(!green && text.contains("FAILED  gpu_idle_experts\n") && text.contains("killed after"), "{text}");
}

/// Tests of a suite, but for those that only run when they are asked for: names of functions in its file and in the modules that it has of other files.
fn tests_of(suite: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (mut files, mut tests) = (vec![format!("{suite}.rs")], Vec::new());
    while let Some(file) = files.pop() {
        let text = fs::read_to_string(folder.join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut attributes = Vec::new();
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("#[path = \"") {
                files.push(path.strip_suffix("\"]").unwrap().to_string());
            } else if line.starts_with("#[") {
                attributes.push(line);
            } else {
                let attributes = std::mem::take(&mut attributes);
                let Some((name, _)) = line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) else { continue };
                if attributes.contains(&"#[test]") && !attributes.iter().any(|one| one.starts_with("#[ignore")) {
                    tests.push(name.to_string());
                }
            }
        }
    }
    tests
}

/// A suite that is new is looked at by memcheck, too, or the script says why not.
#[test]
fn memcheck_runs_every_suite_but_three() {
    let bundle = Bundle::new();
    assert!(bundle.run(&["sanitize", "memcheck"]).0);
    let ran = fs::read_to_string(bundle.path("reports/ran")).unwrap();
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut left_out: Vec<_> = names
        .filter_map(|name| name.strip_suffix(".rs").filter(|name| name.starts_with("gpu_")).map(str::to_string))
        .filter(|suite| !ran.lines().any(|line| line.starts_with(&format!("ran memcheck {suite} "))))
        .collect();
    left_out.sort_unstable();
    assert_eq!(left_out, ["gpu_cast_long", "gpu_e2m1", "gpu_train_char"]);
}

/// A word that no test has would be passed by in silence.
#[test]
fn every_word_of_the_sanitizers_names_a_test() {
    let bundle = Bundle::new();
    assert!(bundle.run(&["sanitize"]).0);
    let ran = fs::read_to_string(bundle.path("reports/ran")).unwrap();
    let mut words = 0;
    for line in ran.lines() {
        let mut parts = line.split(' ').filter(|word| !word.is_empty()).skip(2);
        let suite = parts.next().unwrap();
        let tests = tests_of(suite);
        assert!(!tests.is_empty(), "{suite} has no test");
        for word in parts.filter(|word| *word != "--skip") {
            assert!(tests.iter().any(|test| test.contains(word)), "{word} is in none of {tests:?} of {suite}");
            words += 1;
        }
    }
    assert!(words > 100, "{words} words in {ran}");
}

#[test]
fn a_soak_is_of_tests_that_ran() {
    let bundle = Bundle::new();
    let passed = |count| {
        format!("echo \"$* \" \"$SCALED_GEMM_SM\" >>reports-of-tests; echo 'test result: ok. {count} passed; 0 failed'")
    };
    bundle.suite("gpu_sm90", &passed(1));
    bundle.suite("gpu_idle_experts", &passed(0));
    let (green, text) = bundle.run(&["soak"]);
    assert!(!green && text.contains("ok      gpu_sm90 a_million_calls"), "{text}");
    assert!(text.contains("FAILED  gpu_idle_experts groups_without_rows_take_no_time"), "{text}");
    bundle.suite("gpu_idle_experts", &passed(1));
    let (green, text) = bundle.run(&["soak"]);
    assert!(green, "{text}");
    let asked = fs::read_to_string(bundle.path("reports-of-tests")).unwrap();
    assert!(asked.contains("--ignored --nocapture a_million_calls"), "{asked}");
}

/// Each suite's result is said when it has ended, and not with the last one's; what was killed with all that knew of it is a failure, too.
#[test]
fn results_are_said_as_suites_end() {
    let bundle = Bundle::new();
    bundle.suite("gpu_first", "echo 'test result: ok. 2 passed'");
    // Ends when somebody has read of the first one.
    let waits = "for turn in $(seq 200); do [ -f go ] && { echo 'test result: ok. 3 passed'; exit 0; }; sleep 0.1; done; exit 7";
    bundle.suite("gpu_second", waits);
    // It wants the GPU alone.
    bundle.suite("gpu_memory", "[ -f go ] && echo 'test result: ok. 4 passed'");
    let mut running = bundle.command(&["test"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = said.next().unwrap();
    assert!(first.starts_with("ok      gpu_first: test result: ok. 2 passed ("), "{first}");
    fs::write(bundle.path("go"), "").unwrap();
    let rest: Vec<_> = said.collect();
    assert!(running.wait().unwrap().success(), "{rest:?}");
    let [second, memory] = &rest[..] else { panic!("{rest:?}") };
    assert!(second.starts_with("ok      gpu_second: test result: ok. 3 passed ("), "{second}");
    assert!(memory.starts_with("ok      gpu_memory: test result: ok. 4 passed ("), "{memory}");
    let all = fs::read_to_string(bundle.path("out/tests.txt")).unwrap();
    assert_eq!(all.matches("test result").count(), 3, "{all}");

    bundle.suite("gpu_second", "echo words; exit 3");
    bundle.suite("gpu_killed", "kill -9 $PPID; sleep 0.1");
    let (green, text) = bundle.run(&["test"]);
    assert!(!green && text.contains("FAILED  gpu_second (exit status 3, "), "{text}");
    assert!(text.contains("FAILED  gpu_killed: nobody knows how it ended"), "{text}");
    assert_eq!((text.matches("ok      ").count(), text.matches("FAILED").count()), (2, 2), "{text}");
    let (green, text) = bundle.run(&["test", "gpu_none"]);
    assert!(!green && text.contains("FAILED  gpu_none (exit status"), "{text}");
}

/// A test that skips passes: how many did is said, each once, whatever it says of it.
#[test]
fn tests_that_skipped_are_counted() {
    let bundle = Bundle::new();
    let section = |name: &str, words: &str| format!("---- {name} stdout ----\n{words}\n\n");
    let said = section("one", "skipped: no GPU\nskipped: and more")
        + &section("two", "not skipped: it ran")
        + &section("three", "words\nskipped: cuBLASLt has none")
        + &section("four", "words");
    fs::write(bundle.path("said"), said).unwrap();
    // Libtest shows it where it is asked for.
    bundle.suite("gpu_some", "case \"$*\" in *--show-output*) cat said;; esac; echo 'test result: ok. 4 passed'");
    bundle.suite("gpu_none", "echo 'test result: ok. 4 passed'");
    let (green, text) = bundle.run(&["test"]);
    assert!(green, "{text}");
    assert!(text.contains("gpu_some: test result: ok. 4 passed; 2 of these skipped something ("), "{text}");
    assert!(text.contains("gpu_none: test result: ok. 4 passed ("), "{text}");
    let all = fs::read_to_string(bundle.path("out/tests.txt")).unwrap();
    assert!(all.contains("skipped: cuBLASLt has none"), "{all}");
}

/// Those of 80 and of 89, and a failure of either counts.
#[test]
fn the_portable_variant_is_asked_for() {
    let bundle = Bundle::new();
    for suite in ["gpu_small_m_e2m1", "gpu_small_m_e4m3", "gpu_cast", "gpu_cast_shapes", "gpu_mxfp4"] {
        bundle.suite(suite, &format!("echo {suite} $SCALED_GEMM_SM >>asked; echo 'test result: ok. 1 passed'"));
    }
    let (green, text) = bundle.run(&["portable"]);
    assert!(green, "{text}");
    let asked = fs::read_to_string(bundle.path("asked")).unwrap();
    let mut asked: Vec<&str> = asked.lines().collect();
    asked.sort_unstable();
    let want = [
        "gpu_cast 80",
        "gpu_cast_shapes 80",
        "gpu_mxfp4 80",
        "gpu_small_m_e2m1 80",
        "gpu_small_m_e2m1 89",
        "gpu_small_m_e4m3 80",
        "gpu_small_m_e4m3 89",
    ];
    assert_eq!(asked, want);
    bundle.suite("gpu_small_m_e4m3", "[ $SCALED_GEMM_SM = 80 ]");
    let (green, text) = bundle.run(&["portable"]);
    assert!(!green && text.matches("FAILED").count() == 1, "{text}");
}

/// Those of quantizers, casts, producers and products, each of which is a suite that there is.
#[test]
fn the_suites_whose_kernels_nvrtc_compiles_are_there() {
    let bundle = Bundle::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let Some(suite) = name.strip_suffix(".rs").filter(|name| name.starts_with("gpu_")) else { continue };
        bundle.suite(suite, &format!("echo {suite} $SCALED_GEMM_KERNELS >>asked; echo 'test result: ok. 1 passed'"));
    }
    let (green, text) = bundle.run(&["nvrtc"]);
    assert!(green, "{text}");
    let asked = fs::read_to_string(bundle.path("asked")).unwrap();
    for suite in ["gpu_cast_shapes", "gpu_cast_floors", "gpu_producers", "gpu_producer_shapes", "gpu_fused", "gpu_sm90"]
    {
        assert_eq!(asked.lines().filter(|line| *line == format!("{suite} nvrtc")).count(), 1, "{suite} in {asked}");
    }
    assert!(asked.lines().all(|line| line.ends_with(" nvrtc")), "{asked}");
}

/// Help, and words that make no sense: said before a compiler, a package or a folder is touched.
#[test]
fn scripts_say_their_use_before_they_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Whoever calls one of these has begun to work.
    for name in ["cargo", "rustc", "python3"] {
        executable(
            &path("bin").join(name),
            &format!("#!/bin/sh\necho {name} >>'{}'\nexit 3\n", path("worked").display()),
        );
    }
    fs::create_dir(path("bundle")).unwrap();
    fs::write(path("bundle/kept"), "").unwrap();
    let runs = |script: &str, arguments: &[&str], folders: &str, compiler: &str| {
        let bin = path("bin");
        let output = Command::new("bash")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script))
            .args(arguments)
            .envs(["NVCC", "CUDA_HOME", "CUDA_PATH"].map(|name| (name, "")))
            .env("SCALED_GEMM_NVCC", compiler)
            .env("PATH", format!("{}:{folders}", bin.display()))
            .output()
            .unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|words| String::from_utf8(words).unwrap());
        (output.status.code().unwrap(), out, error)
    };
    let says = |script: &str, arguments: &[&str]| runs(script, arguments, &std::env::var("PATH").unwrap(), "off");
    for script in ["fuzz.sh", "real-model.sh", "bundle.sh"] {
        for word in ["--help", "-h"] {
            let (code, out, error) = says(script, &[word]);
            assert_eq!((code, error.as_str()), (0, ""), "{script} {word}: {out}");
            assert!(out.starts_with(&format!("usage: scripts/{script} [")), "{script} {word}: {out}");
        }
    }
    let bundle = path("bundle");
    let bundle = bundle.to_str().unwrap();
    let known = "is not one of 80, 89, 90a, 100a, 120a\n";
    for (script, arguments, words) in [
        ("fuzz.sh", &["file"][..], "fuzz.sh: file is no number of seconds\nusage: "),
        ("fuzz.sh", &["5", "files"], "fuzz.sh: files is no target\nusage: "),
        ("bundle.sh", &["--gpu", bundle], "usage: "),
        ("bundle.sh", &["--gpus", "91", bundle], &format!("bundle.sh: --gpus 91: '91' {known}")),
        ("bundle.sh", &[bundle, "--gpus", "90a,sm_80"], &format!("bundle.sh: --gpus 90a,sm_80: 'sm_80' {known}")),
        ("bundle.sh", &["--gpus", "90a,", bundle], &format!("bundle.sh: --gpus 90a,: '' {known}")),
        ("bundle.sh", &["--gpus", "90a 100a", bundle], &format!("bundle.sh: --gpus 90a 100a: '90a 100a' {known}")),
    ] {
        let (code, out, error) = says(script, arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{script} {arguments:?}: {error}");
        assert!(error.starts_with(words), "{script} {arguments:?}: {error}");
    }
    // Without a compiler the kernels would be left to NVRTC: only where that is asked for.
    if !Path::new("/usr/bin/nvcc").exists() {
        let (code, out, error) = runs("bundle.sh", &[bundle], "/usr/bin:/bin", "");
        assert_eq!((code, out.as_str()), (1, ""), "{error}");
        assert!(error.starts_with("bundle.sh: no nvcc by NVCC, CUDA_HOME, CUDA_PATH or PATH"), "{error}");
        assert!(error.contains("scripts/cuda-toolchain.sh") && error.contains("SCALED_GEMM_NVCC=off"), "{error}");
    }
    assert!(path("bundle/kept").exists() && !path("worked").exists());
    // What is asked for by a name that is one does begin.
    assert_eq!(says("bundle.sh", &["--gpus", "80, 120a", bundle]).0, 3);
    assert!(path("worked").exists() && !path("bundle/kept").exists());
}
