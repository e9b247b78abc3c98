//! The program where the library under the driver's name is not a driver: it says so, and runs on the CPU.
#![cfg(all(target_os = "linux", feature = "cuda"))]

mod common;

use std::fs;
use std::process::{Command, Output};

use common::{Folder, assert_words, error_of, program};

fn info(folder: &Folder, device: &str) -> Output {
    let mut command = Command::new(program());
    command.args(["info", "--json", "--device", device]).env("LD_LIBRARY_PATH", &folder.0).output().unwrap()
}

/// `cuda` refuses with these words, `auto` says them and takes the CPU.
fn refused(folder: &Folder, words: &[&str]) {
    assert_words(&error_of(&info(folder, "cuda"), 2), words);
    let auto = info(folder, "auto");
    let said = String::from_utf8(auto.stderr).unwrap();
    assert_eq!(auto.status.code(), Some(0), "{said}");
    assert_words(&said, &[&["device cpu"], words].concat());
}

#[test]
fn a_driver_library_that_lacks_functions_is_refused_and_auto_takes_the_cpu() {
    let folder = Folder::new();
    let (source, library) = (folder.file("driver.c"), folder.file("libcuda.so.1"));
    for (text, function) in [("int x;", "cuInit"), ("int cuInit() { return 0; }", "cuDriverGetVersion")] {
        fs::write(&source, text).unwrap();
        // As well under the name that is tried first: this machine may have a driver.
        let built = Command::new("cc").args(["-shared", "-fPIC", &source, "-o", &library]).status().unwrap();
        assert!(built.success());
        fs::copy(&library, folder.file("libcuda.so")).unwrap();
        refused(
            &folder,
            &[
                "libcuda.so",
                folder.0.to_str().unwrap(),
                function,
                "install NVIDIA's driver of CUDA 12.4 or newer",
                ", or use --device cpu",
            ],
        );
    }
}

#[test]
fn a_driver_library_that_does_not_load_says_why() {
    let folder = Folder::new();
    for name in ["libcuda.so.1", "libcuda.so"] {
        fs::write(folder.file(name), "no library, but some text that is long enough to be read as a header ".repeat(9))
            .unwrap();
    }
    refused(&folder, &["libcuda.so", "does not load", "invalid ELF header"]);
}
