//! Where files go: links are followed, what is no regular file is refused before the work, and nothing is in the way of the
//! next run. What no regular file is read either.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use safetensors::tensor::Dtype;
use scaled_gemm::Error;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, OutputFile, OutputFolder, printable};

use super::{Folder, foreign};

fn one_byte() -> CheckpointLayout {
    let mut layout = CheckpointLayout::new();
    layout.tensor("a", Dtype::U8, &[1]);
    layout
}

/// Writes a file of one tensor to `path`.
fn write_one(path: &Path, byte: u8) {
    let writer = one_byte().create(path, &[]).unwrap();
    writer.write("a", &[byte]).unwrap();
    writer.finish().unwrap();
}

fn read_one(path: &Path) -> u8 {
    Checkpoint::open(path).unwrap().bytes("a").unwrap()[0]
}

#[cfg(unix)]
#[test]
fn links_stay_and_what_they_lead_to_is_written() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    fs::create_dir(folder.file("data")).unwrap();
    let real = folder.file("data/real");
    write_one(&real, 1);
    symlink("data/real", folder.file("inner")).unwrap();
    symlink(folder.file("inner"), folder.file("outer")).unwrap();
    write_one(&folder.file("outer"), 2);
    assert_eq!(read_one(&real), 2);
    // A link to what is not there yet.
    symlink("data/new", folder.file("dangling")).unwrap();
    write_one(&folder.file("dangling"), 3);
    assert_eq!(read_one(&folder.file("data/new")), 3);
    for link in ["inner", "outer", "dangling"] {
        assert!(fs::symlink_metadata(folder.file(link)).unwrap().is_symlink(), "{link} was replaced");
    }
    symlink("circle", folder.file("circle")).unwrap();
    let error = OutputFile::create(folder.file("circle")).unwrap_err().to_string();
    assert!(error.contains("circle: too many"), "{error}");
    // The input is known under every name.
    let input = Checkpoint::open(&real).unwrap();
    let error = one_byte().create(folder.file("outer"), &[&input]).unwrap_err().to_string();
    assert!(error.contains("it is the input"), "{error}");
    assert_eq!((read_one(&real), fs::read_dir(folder.file("data")).unwrap().count()), (2, 2));
}

#[cfg(unix)]
#[test]
fn devices_pipes_and_folders_are_refused_before_the_work() {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::new();
    let pipe = folder.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, kind) in [(Path::new("/dev/null"), "a device"), (&pipe, "a pipe"), (&folder.0, "a folder")] {
        let error = OutputFile::create(path).unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("regular file"), "{error}");
        if path.is_dir() {
            continue;
        }
        // A reader of a pipe would wait for a writer.
        let error = Checkpoint::open(path).unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("regular file"), "{error}");
    }
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let error = OutputFile::create(folder.file("nowhere/out")).unwrap_err().to_string();
    assert!(error.contains("there is no folder") && error.contains("nowhere"), "{error}");
    assert!(OutputFile::create("").is_err() && OutputFile::create("/").is_err());
    assert_eq!(folder.names(), ["pipe"]);
}

#[test]
fn what_a_killed_process_left_is_in_nobodys_way() {
    let folder = Folder::new();
    let path = folder.file("out");
    // Killed processes remove nothing; the next one, in its container, has the same id.
    let first = OutputFile::create(&path).unwrap();
    let left: Vec<_> = (0..3).map(|i| folder.file(&format!(".out.{}-{i}.tmp", std::process::id()))).collect();
    left.iter().for_each(|file| fs::write(file, "partial").unwrap());
    let second = OutputFile::create(&path).unwrap();
    assert_ne!(first.temporary(), second.temporary());
    assert_eq!(first.temporary().parent(), path.parent());
    drop((first, second));
    write_one(&path, 1);
    assert_eq!(folder.names().len(), 1 + left.len());
}

#[cfg(unix)]
#[test]
fn modes_are_those_of_other_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (made, plain) = (folder.file("made"), folder.file("plain"));
    write_one(&made, 1);
    fs::write(&plain, "").unwrap();
    assert_eq!(mode(&made), mode(&plain));
    fs::set_permissions(&made, fs::Permissions::from_mode(0o640)).unwrap();
    write_one(&made, 2);
    assert_eq!((mode(&made), read_one(&made)), (0o640, 2));
}

#[test]
fn plain_text_is_written_whole_or_not_at_all() {
    let folder = Folder::new();
    let path = folder.file("out.json");
    fs::write(&path, "old").unwrap();
    let mut file = OutputFile::create(&path).unwrap();
    file.write(b"new ").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    drop(file);
    assert_eq!((fs::read(&path).unwrap(), folder.names().len()), (b"old".to_vec(), 1));
    let mut file = OutputFile::create(&path).unwrap();
    file.write(b"new ").unwrap();
    file.write(b"text").unwrap();
    assert_eq!(file.path(), path);
    file.finish().unwrap();
    let mut text = String::new();
    fs::File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), folder.names().len()), ("new text", 1));
    // A layout starts at the beginning.
    let mut file = OutputFile::create(&path).unwrap();
    file.write(&[7; 1000]).unwrap();
    let writer = one_byte().create_in(file, &[]).unwrap();
    writer.write("a", &[5]).unwrap();
    writer.finish().unwrap();
    assert_eq!(read_one(&path), 5);
}

#[test]
fn names_with_control_characters_come_out_escaped() {
    let folder = Folder::new();
    let path = folder.file("in");
    let name = "w\u{1b}[31m\u{9b}\u{202e}";
    for (tensors, word) in [
        (vec![(name, Dtype::F8_E4M3, vec![4, 16], vec![1; 64])], "no scale"),
        (
            vec![
                (name, Dtype::U8, vec![8, 8], vec![1; 64]),
                ("w\u{1b}[31m\u{9b}\u{202e}_scale_2", Dtype::F32, vec![1], vec![0; 4]),
            ],
            "no scale",
        ),
        (
            vec![
                (name, Dtype::F8_E4M3, vec![2, 2, 16], vec![1; 64]),
                ("w\u{1b}[31m\u{9b}\u{202e}_scale", Dtype::F32, vec![1], vec![0; 4]),
            ],
            "two dimensions",
        ),
    ] {
        foreign(&path, &tensors, None);
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!(file.quantized(), [name]);
        for error in [file.scheme(name).unwrap_err(), file.matrix("other").unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains(r"w\u{1b}[31m\u{9b}\u{202e}"), "{error:?}");
            assert!(!error.contains(|c: char| c.is_control() || c == '\u{202e}'), "{error:?}");
        }
        let error = file.scheme(name).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(printable("it's \"a\\b\" – é"), "it's \"a\\b\" – é");
}

/// (The system's words alone, and what was written was gone.)
#[test]
fn what_was_written_stays_where_its_name_was_taken_meanwhile() {
    let folder = Folder::new();
    let (path, partial) = (folder.file("out"), folder.file(".out.partial"));
    for is_folder in [true, false] {
        let output = OutputFolder::create(&path).unwrap();
        output.write("model.safetensors", b"hours of work").unwrap();
        match is_folder {
            true => fs::create_dir(&path).and_then(|()| fs::write(path.join("theirs"), "")).unwrap(),
            false => fs::write(&path, "theirs").unwrap(),
        }
        let error = output.finish().unwrap_err().to_string();
        for words in [
            "out: was made by somebody else",
            "; what was written is whole in ",
            ".out.partial: give it a name that is free",
        ] {
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(fs::read(partial.join("model.safetensors")).unwrap(), b"hours of work");
        assert_eq!(fs::read_dir(&partial).unwrap().count(), 1);
        // The next run does not take it for what a killed one left.
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        let error = OutputFolder::create(&path).unwrap_err().to_string();
        assert!(error.contains("which is there and not ours") && partial.exists(), "{error}");
        fs::remove_dir_all(&partial).unwrap();
    }
}

/// (`Is a directory (os error 21)`, and what was written was gone.)
#[test]
fn a_file_stays_where_a_folder_has_taken_its_name() {
    let folder = Folder::new();
    let path = folder.file("out");
    let mut output = OutputFile::create(&path).unwrap();
    output.write(b"hours of work").unwrap();
    fs::create_dir(&path).unwrap();
    let error = output.finish().unwrap_err().to_string();
    let names = folder.names();
    let kept = names.iter().find(|name| *name != "out").unwrap_or_else(|| panic!("{error}: {names:?}"));
    for words in
        ["out: cannot be given its name: ", &format!("; what was written is whole in {}", folder.file(kept).display())]
    {
        assert!(error.contains(words), "{error}");
    }
    assert!(error.contains(": give it a name that is free"), "{error}");
    assert_eq!(fs::read(folder.file(kept)).unwrap(), b"hours of work");
    // The next run does not take it for what a killed one left.
    fs::remove_dir(&path).unwrap();
    assert_eq!(OutputFile::create(&path).unwrap().left_behind(), [] as [&Path; 0]);
    assert_eq!(folder.names().len(), 1);
}

/// (Of a file it was said to be whole where nothing was, of a folder that its user should give one that is there.)
#[cfg(unix)]
#[test]
fn what_was_removed_while_it_was_written_is_said_to_be_gone() {
    let folder = Folder::new();
    let around = Path::new(&folder.file("around")).to_path_buf();
    fs::create_dir(&around).unwrap();
    let mut output = OutputFile::create(around.join("out")).unwrap();
    output.write(b"hours of work").unwrap();
    fs::remove_file(output.temporary()).unwrap();
    let of_file = output.finish().unwrap_err();
    let mut output = OutputFile::create(around.join("out")).unwrap();
    output.write(b"hours of work").unwrap();
    fs::remove_dir_all(&around).unwrap();
    let without_folder = output.finish().unwrap_err();
    let output = OutputFolder::create(folder.file("out")).unwrap();
    output.write("model.safetensors", b"hours of work").unwrap();
    fs::remove_dir_all(folder.file(".out.partial")).unwrap();
    let of_folder = output.finish().unwrap_err();
    for error in [of_file, without_folder, of_folder] {
        // No wrong use: nothing that the user gave is not there.
        assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::Other), "{error}");
        let error = error.to_string();
        assert!(error.contains("out: cannot be given its name: "), "{error}");
        assert!(
            error.contains("; what was written is no more in ")
                && error.ends_with(": it was removed or moved meanwhile; write it again"),
            "{error}"
        );
    }
}

/// (What was written was removed where its mark could not be.)
#[test]
fn what_was_written_stays_whatever_becomes_of_its_mark() {
    for is_gone in [true, false] {
        let folder = Folder::new();
        let (path, partial) = (Path::new(&folder.file("out")).to_path_buf(), folder.file(".out.partial"));
        let output = OutputFolder::create(&path).unwrap();
        let mark = fs::read_dir(&partial).unwrap().next().unwrap().unwrap().path();
        output.write("model.safetensors", b"hours of work").unwrap();
        fs::remove_file(&mark).unwrap();
        if is_gone {
            output.finish().unwrap();
            assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), b"hours of work");
            continue;
        }
        fs::create_dir(&mark).unwrap();
        let error = output.finish().unwrap_err().to_string();
        let whole = format!("; what was written is whole in {}: give it a name that is free", partial.display());
        assert!(error.contains("cannot be given its name: ") && error.contains(&whole), "{error}");
        assert_eq!(fs::read(partial.join("model.safetensors")).unwrap(), b"hours of work");
    }
}

/// (The next run took it for what a killed one left, and emptied it.)
#[cfg(unix)]
#[test]
fn what_is_whole_stays_though_its_mark_does() {
    use std::os::unix::fs::PermissionsExt;
    for is_moved in [true, false] {
        let folder = Folder::new();
        let (path, partial, moved) = (folder.file("out"), folder.file(".out.partial"), folder.file("moved"));
        let output = OutputFolder::create(&path).unwrap();
        output.write("model.safetensors", b"hours of work").unwrap();
        let error = if is_moved {
            fs::rename(&partial, &moved).unwrap();
            fs::write(&partial, "theirs").unwrap();
            let error = output.finish().unwrap_err().to_string();
            fs::remove_file(&partial).unwrap();
            fs::rename(&moved, &partial).unwrap();
            // (It was said to be whole there.)
            assert!(error.contains(".out.partial: ") && !error.contains("whole"), "{error}");
            error
        } else {
            let allow = |mode| fs::set_permissions(&partial, fs::Permissions::from_mode(mode)).unwrap();
            allow(0o555);
            let done = output.finish();
            if done.is_ok() {
                // Nothing is forbidden to root.
                continue;
            }
            allow(0o755);
            let error = done.unwrap_err().to_string();
            assert!(error.contains("; what was written is whole in "), "{error}");
            error
        };
        for refused in [OutputFolder::check(&path), OutputFolder::create(&path).map(drop)] {
            let refused = refused.unwrap_err().to_string();
            for words in
                ["out: cannot be written by way of ", ".out.partial, which holds what an earlier run wrote, whole"]
            {
                assert!(refused.contains(words), "{error}; {refused}");
            }
        }
        assert_eq!(fs::read(partial.join("model.safetensors")).unwrap(), b"hours of work");
    }
}

/// (Its mark was removed, and its half took the name.)
#[cfg(unix)]
#[test]
fn what_another_writes_anew_is_left_to_it() {
    let folder = Folder::new();
    let (path, partial) = (folder.file("out"), folder.file(".out.partial"));
    let ends: [fn(OutputFolder) -> Option<String>; 3] = [
        |output| output.finish().err().map(|e| e.to_string()),
        |output| {
            drop(output);
            None
        },
        |output| {
            output.removal().unwrap().remove().unwrap();
            None
        },
    ];
    for end in ends {
        let first = OutputFolder::create(&path).unwrap();
        first.write("model.safetensors", b"hours of work").unwrap();
        fs::remove_dir_all(&partial).unwrap();
        let second = OutputFolder::create(&path).unwrap();
        second.write("model.safetensors", b"half").unwrap();
        if let Some(error) = end(first) {
            assert!(error.contains("out: is being written by another process"), "{error}");
        }
        assert!(!path.exists());
        assert_eq!(fs::read(partial.join("model.safetensors")).unwrap(), b"half");
        second.finish().unwrap();
        assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), b"half");
        fs::remove_dir_all(&path).unwrap();
    }
}

/// (It was removed in the order of the system, and what was left without it was nobody's.)
#[test]
fn the_mark_of_a_folder_goes_last() {
    let folder = Folder::new();
    let partial = folder.file(".out.partial");
    let output = OutputFolder::create(folder.file("out")).unwrap();
    let mark = fs::read_dir(&partial).unwrap().next().unwrap().unwrap().path();
    for i in 0..2000 {
        fs::write(partial.join(format!("{i}")), "").unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let mut unmarked = 0;
            while !is_over.load(Ordering::Relaxed) {
                let holds = || fs::read_dir(&partial).is_ok_and(|mut entries| entries.next().is_some());
                unmarked += usize::from(!mark.exists() && holds());
            }
            unmarked
        });
        drop(output);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(seen.join().unwrap(), 0);
    });
    assert!(!partial.exists());
}

/// (A file that was made meanwhile kept the folder, without its mark.)
#[test]
fn a_folder_that_is_being_filled_is_removed() {
    for _ in 0..20 {
        let folder = Folder::new();
        let output = OutputFolder::create(folder.file("out")).unwrap();
        let removal = output.removal().unwrap();
        assert_eq!(removal.temporary(), output.temporary());
        std::thread::scope(|scope| {
            let filling = scope.spawn(|| (0..100_000).find(|i| output.write(&format!("{i}"), b"").is_err()));
            while !filling.is_finished() && !output.temporary().join("30").exists() {
                std::thread::yield_now();
            }
            removal.remove().unwrap();
            filling.join().unwrap();
        });
        assert_eq!(folder.names().len(), 0);
        // A second time there is nothing to do.
        removal.remove().unwrap();
    }
}

/// (One that looked for the mark before it was removed made it anew, and emptied what was whole.)
#[test]
fn what_another_finishes_just_now_is_not_emptied() {
    let folder = Folder::new();
    let is_over = AtomicBool::new(false);
    let now = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(OutputFolder::create(folder.file(&now.load(Ordering::Relaxed).to_string())));
            }
        });
        for at in 1..=300 {
            let path = folder.file(&at.to_string());
            let Ok(output) = OutputFolder::create(&path) else { continue };
            output.write("model.safetensors", b"hours of work").unwrap();
            now.store(at, Ordering::Relaxed);
            let done = output.finish();
            let kept = fs::read(path.join("model.safetensors"));
            if kept.as_deref().ok() != Some(b"hours of work") {
                is_over.store(true, Ordering::Relaxed);
                panic!("{at}: {done:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// (Nothing was said of it, and each killed run left one more.)
#[cfg(unix)]
#[test]
fn what_a_killed_run_left_is_told_from_what_is_written() {
    let folder = Folder::new();
    let path = folder.file("out");
    let writing = OutputFile::create(&path).unwrap();
    assert_eq!(writing.left_behind(), [] as [&Path; 0]);
    for name in [".out.abcDE1.tmp", ".out.other.tmp", ".out2.abcDE1.tmp", "out.abcDE1.tmp"] {
        fs::write(folder.file(name), "half").unwrap();
    }
    assert_eq!(OutputFile::create(&path).unwrap().left_behind(), [folder.file(".out.abcDE1.tmp")]);
    writing.finish().unwrap();
    assert!(folder.file(".out.abcDE1.tmp").exists());
}

/// (It was refused for the shards alone.)
#[test]
fn the_index_that_was_read_is_the_input_too() {
    let folder = Folder::new();
    write_one(&folder.file("a.safetensors"), 1);
    let index = folder.file("model.safetensors.index.json");
    let text = r#"{"weight_map": {"a": "a.safetensors"}}"#;
    fs::write(&index, text).unwrap();
    for path in [index.as_path(), &folder.0] {
        let input = Checkpoint::open(path).unwrap();
        let error = one_byte().create(&index, &[&input]).unwrap_err().to_string();
        assert!(error.contains("it is the input"), "{error}");
        assert!(one_byte().check(&index, &[&input]).is_err());
    }
    assert_eq!(fs::read_to_string(&index).unwrap(), text);
}

/// (Made and not locked yet, it was taken for a dead one.)
#[cfg(unix)]
#[test]
fn what_others_are_about_to_write_is_not_called_left_behind() {
    let folder = Folder::new();
    // A machine may be too busy to lock in time, and not always.
    let is_found_young = || {
        let young = folder.file(".out.abcDE1.tmp");
        let file = fs::File::create(&young).unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            file.lock().unwrap();
            file
        });
        let is_said = !OutputFile::create(folder.file("out")).unwrap().left_behind().is_empty();
        drop(late.join().unwrap());
        fs::remove_file(&young).unwrap();
        !is_said
    };
    let found = (0..20).filter(|_| is_found_young()).count();
    assert!(found > 10, "{found} of 20");
}
