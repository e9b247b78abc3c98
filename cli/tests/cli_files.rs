//! Where the program's results go: files that appear whole or not at all, whatever ends it; standard output that is full; names
//! that come from files. Inputs that would never end.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    Folder, assert_words, bad, error_of, f32_bytes, f32_tensor, good, json, model, model_folder, program, read_f32,
    said, write,
};
use safetensors::tensor::Dtype;

fn pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A run on the CPU that may not end by itself. Signals mean what they mean by default, also where these tests run under nohup
/// or in the background of a shell, which has them ignored.
fn spawn(args: &[&str]) -> Child {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT,TERM,XCPU,XFSZ").arg(program());
    command.args(args).args(["--device", "cpu"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits a while for something to become true.
fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn outputs_are_regular_files_and_links_stay() {
    let folder = Folder::new();
    let (input, real, link) = (folder.file("in"), folder.file("real"), folder.file("link"));
    model(&input);
    symlink("real", &link).unwrap();
    good(&["quantize", &input, "-o", &link, "--recipe", "fp8-row"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let (fifo, nowhere, circle) = (folder.file("fifo"), folder.file("none/out"), folder.file("circle"));
    pipe(&fifo);
    symlink("circle", &circle).unwrap();
    let folder_path = folder.0.to_str().unwrap();
    let names = folder.names();
    for (output, word) in [
        ("/dev/full", "a device"),
        (&fifo, "a pipe"),
        (folder_path, "a folder"),
        (&nowhere, "no folder"),
        (&circle, "too many links: more than 40, or a circle; give"),
        ("/dev/stdout", "leads into /proc, where no file can be made; give"),
        ("/dev/fd/1", "leads into /proc"),
        ("/proc/out", "leads into /proc"),
        ("/sys/out", "no file can be made in the folder /sys: "),
    ] {
        let product = format!("{real}:layer.weight");
        let runs: [&[&str]; 6] = [
            &["quantize", &input, "--recipe", "fp8-row", "-o", output],
            &["dequantize", &real, "-o", output],
            &["gemm", "--a", &product, "--b", &product, "-o", output],
            &["tune", "--shapes", "16x16x16", "-o", output],
            // Found out before the work, which would take an hour.
            &["bench", "--shapes", "8192x8192", "--m", "4096", "--plot", output],
            &["bench", "--shapes", "8192x8192", "--m", "4096", "--json", output],
        ];
        for args in runs {
            assert_words(&bad(2, args), &[output, word, "give "]);
        }
    }
    assert_words(&bad(2, &["quantize", &input, "--recipe", "fp8-row", "-o", "-"]), &["standard output", "./-"]);
    assert_eq!(folder.names(), names);
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    let error = bad(2, &["bench", "--shapes", "16x16x16", "--json", &real, "--plot", &real]);
    assert_words(&error, &["real", "--json and --plot"]);
}

#[test]
fn a_signal_leaves_nothing_and_what_was_there() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("q"));
    // Some seconds of work.
    write(&input, &[("w", Dtype::F32, vec![4096, 4096], vec![0x3F; 4 << 24])]);
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--four-over-six", "mse"];
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3), ("XCPU", 24)] {
        fs::write(&output, "old").unwrap();
        let child = spawn(&args);
        wait_for("the temporary file", || folder.names().len() > 2);
        signal(&child, name);
        let status = child.wait_with_output().unwrap().status;
        assert_eq!(status.signal(), Some(number), "{name}: {status:?}");
        assert_eq!(folder.names(), ["in", "q"], "after {name}");
        assert_eq!(fs::read(&output).unwrap(), b"old");
    }
    // Nobody can clean up after this one; the next run is not disturbed.
    let child = spawn(&args);
    wait_for("the temporary file", || folder.names().len() > 2);
    signal(&child, "KILL");
    child.wait_with_output().unwrap();
    // It is said, while nobody writes it; the other is being written.
    let child = spawn(&args);
    let is_held = |name: &String| {
        let file = fs::File::open(folder.0.join(name));
        name.ends_with(".tmp")
            && file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
    };
    wait_for("the temporary file to be held", || folder.names().iter().any(is_held));
    let names = folder.names();
    let text = said(&["quantize", &input, "-o", &output, "--recipe", "fp8-row"]);
    assert_words(&text, &[".tmp: was left by a run that was killed; it may be removed"]);
    assert_eq!(text.matches(".tmp: ").count(), 1, "{names:?}: {text}");
    signal(&child, "TERM");
    child.wait_with_output().unwrap();
    assert!(fs::metadata(&output).unwrap().len() > 1 << 24);
    // Under nohup a hangup ends nothing.
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(program()).args(args).args(["--device", "cpu"]);
    let before = folder.names().len();
    let mut child = nohup.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the temporary file", || folder.names().len() > before);
    signal(&child, "HUP");
    assert!(child.wait().unwrap().success());
}

/// (Names were given to folders whose weights were gone, exit code 0; or the folder stayed, without its mark, in the way of the next run.)
#[test]
fn a_signal_at_the_end_leaves_a_whole_folder_or_none() {
    let folder = Folder::new();
    let (input, output, partial) = (folder.file("in"), folder.file("out"), folder.file(".out.partial"));
    model_folder(&input, &[f32_tensor("w.weight", [16, 32], 1)], Some(serde_json::json!({})));
    for i in 100..400 {
        fs::write(format!("{input}/{i}.txt"), "beside").unwrap();
    }
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row"];
    good(&args);
    let whole = fs::read_dir(&output).unwrap().count();
    // While files are copied, when the last is there, and when the name is.
    for at in [110, 200, 300, 380, 395, 399, 399, 399, 399, 399, 399, 399, 0, 0, 0] {
        fs::remove_dir_all(&output).or_else(|_| fs::create_dir(&output)).unwrap();
        let child = spawn(&args);
        let last = format!("{partial}/{at}.txt");
        let is_there = |path: &str| Path::new(path).exists();
        wait_for("a file", || is_there(&format!("{output}/config.json")) || at > 0 && is_there(&last));
        signal(&child, "INT");
        let end = child.wait_with_output().unwrap();
        let number = fs::read_dir(&output).map(Iterator::count).unwrap_or_default();
        assert!(number == whole || number == 0 && !end.status.success(), "{at}: {number} of {whole}: {end:?}");
        assert!(end.status.success() || end.status.signal() == Some(2), "{at}: {end:?}");
        assert!(!is_there(&partial), "{at}: {end:?}");
    }
}

#[test]
fn a_full_disk_is_the_machines_failure() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("q"));
    write(&input, &[f32_tensor("w", [256, 256], 1)]);
    // The limit's signal would end the program, if it were not caught.
    for trap in ["trap '' XFSZ; ", ""] {
        let mut limited = Command::new("env");
        limited.args(["--default-signal=XFSZ", "sh"]);
        limited.args(["-c", &format!("{trap}ulimit -f 16; exec \"$@\""), "sh"]).arg(program());
        limited.args(["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--device", "cpu"]);
        assert_words(
            &error_of(&limited.output().unwrap(), 1),
            &[&output, "too large", "; raise the limit of the shell (ulimit -f)"],
        );
        assert_eq!(folder.names(), ["in"]);
    }
}

#[test]
fn a_full_standard_output_is_an_error_and_a_reader_that_left_is_none() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for args in [&["info"][..], &["info", "--json"], &["--help"], &["quantize", "--help"], &["--version"]] {
        let run = Command::new(program()).args(args).args(["--device", "cpu"]).stdout(full()).output().unwrap();
        assert_words(&error_of(&run, 1), &["standard output: ", "; give it a file or a pipe that can be written to"]);
        let mut child =
            Command::new(program()).args(args).args(["--device", "cpu"]).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
    // Nobody hears of what cannot be said; the result counts.
    for (args, code) in [(["info", "--json"], 0), (["info", "--frob"], 2)] {
        let run = Command::new(program()).args(args).args(["--device", "cpu"]).stderr(full()).output().unwrap();
        assert_eq!(run.status.code(), Some(code));
    }
}

/// (It read as if nothing was done.)
#[test]
fn what_was_written_is_said_where_standard_output_is_full() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    write(&input, &[f32_tensor("w", [16, 32], 1)]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut run = Command::new(program());
    run.args(["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--device", "cpu"]).stdout(full);
    let error = error_of(&run.output().unwrap(), 1);
    assert_words(&error, &["standard output: ", "; what the command wrote to files is whole"]);
    assert!(Path::new(&output).exists());
}

#[test]
fn a_pipe_as_input_is_refused_at_once() {
    let folder = Folder::new();
    let (fifo, file, output) = (folder.file("fifo"), folder.file("q"), folder.file("out"));
    pipe(&fifo);
    write(&file, &[f32_tensor("w", [16, 16], 1)]);
    let (of_pipe, of_file) = (format!("{fifo}:w"), format!("{file}:w"));
    let runs: [&[&str]; 4] = [
        &["quantize", &fifo, "-o", &output, "--recipe", "fp8-row"],
        &["dequantize", &fifo, "-o", &output],
        &["gemm", "--a", &of_file, "--b", &of_pipe, "-o", &output],
        &["bench", "--shapes", "16x16x16", "--tuning", &fifo],
    ];
    for args in runs {
        let mut child = spawn(args);
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                panic!("{args:?} waits for the pipe");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_words(&error_of(&child.wait_with_output().unwrap(), 2), &["fifo", "regular file"]);
    }
}

#[test]
fn names_from_files_cannot_speak_to_the_terminal() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    let evil = "w\u{1b}]0;x\u{7}\u{9b}2J\n\u{202e}";
    let bias = "b\u{1b}[1m";
    write(&input, &[f32_tensor(evil, [16, 16], 1), (bias, Dtype::F32, vec![4], f32_bytes(&[f32::NAN; 4]))]);
    let shown = r"w\u{1b}]0;x\u{7}\u{9b}2J\n\u{202e}";
    let hidden = |text: &str| text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}');
    let quantize = ["quantize", &input, "-o", &packed, "--recipe", "fp8-row"];
    let dequantize = ["dequantize", &packed, "-o", &back];
    for (args, words) in [(&quantize[..], &[shown, r"b\u{1b}[1m"][..]), (&dequantize, &[shown])] {
        let text = good(args);
        assert_words(&text, words);
        assert!(!hidden(&text), "{text:?}");
        // JSON has its own escapes: the name comes back as it is.
        let json_args = [args, &["--json"]].concat();
        assert!(!hidden(&good(&json_args)));
        let value = json(&json_args);
        let list = if args[0] == "quantize" { &value["quantized"] } else { &value["dequantized"] };
        assert_eq!(list[0]["tensor"], evil);
    }
    // Nor can names of files, on the one line that they are written in.
    let (odd, d) = (folder.file("o\u{1b}[1m\nx"), folder.file("d\nx"));
    let place = format!("{packed}:{evil}");
    for args in [
        &["quantize", &input, "-o", &odd, "--recipe", "fp8-row"][..],
        &["dequantize", &packed, "-o", &odd],
        &["gemm", "--a", &place, "--b", &place, "-o", &d],
    ] {
        let text = good(args);
        assert!(text.contains(r"o\u{1b}[1m\nx") || text.contains(r"d\nx"), "{text}");
    }
    write(&input, &[(evil, Dtype::F32, vec![1, 16], f32_bytes(&[f32::NAN; 16]))]);
    for error in [bad(2, &quantize), bad(2, &["dequantize", &input, "-o", "/dev/full\u{1b}[2J"])] {
        assert!(!hidden(&error), "{error:?}");
    }
}

#[test]
fn names_with_colons_are_found() {
    let folder = Folder::new();
    let (x, w, d) = (folder.file("x:y"), folder.file("w"), folder.file("d"));
    write(&x, &[("a:b:c", Dtype::BF16, vec![8, 16], [0x80, 0x3F].repeat(8 * 16))]);
    write(&w, &[("model:w", Dtype::F32, vec![8, 16], f32_bytes(&[1.0; 8 * 16]))]);
    let packed = folder.file("q");
    good(&["quantize", &w, "-o", &packed, "--recipe", "nvfp4"]);
    let product = |a: &str| {
        let b = format!("{packed}:model:w");
        ["gemm", "--a", a, "--b", &b, "--out-dtype", "f32", "-o", &d].map(String::from)
    };
    let args = product(&format!("{x}:a:b:c"));
    good(&args.each_ref().map(String::as_str));
    assert_eq!(read_f32(&d, "d").1, [16.0; 64]);
    // Two files could be meant: nothing is guessed.
    write(&folder.file("x"), &[f32_tensor("y:a:b:c", [8, 16], 1)]);
    assert_words(&bad(2, &args.each_ref().map(String::as_str)), &["x:y", "both files", "rename"]);
    assert_words(&bad(2, &product("nowhere:t").each_ref().map(String::as_str)), &["nowhere", "No such file"]);
}

#[test]
fn what_does_not_fit_in_memory_is_refused_before_it_is_allocated() {
    let folder = Folder::new();
    let (a, d) = (folder.file("a"), folder.file("d"));
    let largest = "1048576x1048576x1048576";
    let error = bad(2, &["bench", "--shapes", &format!("16x16x16,{largest}")]);
    assert_words(&error, &["1048576 x 1048576 x 1048576", "at least", "TiB", "this machine has"]);
    // Files of 20 MB whose product has four terabytes.
    let rows = 1 << 20;
    write(
        &a,
        &[
            ("w", Dtype::F8_E4M3, vec![rows, 16], vec![0x38; rows * 16]),
            ("w_scale", Dtype::F32, vec![rows, 1], f32_bytes(&vec![1.0; rows])),
        ],
    );
    let w = format!("{a}:w");
    let error = bad(2, &["gemm", "--a", &w, "--b", &w, "-o", &d]);
    assert_words(&error, &["1048576 x 1048576", "at least", "TiB"]);
    assert_eq!(folder.names(), ["a"]);
}
