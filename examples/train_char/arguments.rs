//! What a command line asks for.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::training::LAST;

#[derive(Debug, PartialEq)]
pub enum Asked {
    Help,
    Training { device: Option<String>, steps: usize, path: PathBuf },
}

/// Without a number of steps, and the most: two losses of each are kept.
const STEPS: usize = 200;
const MOST: usize = 1_000_000;
/// Without a file.
const FILE: &str = "train_char.svg";

fn usage() -> String {
    format!("usage: train_char [--device cpu|cuda] [STEPS [FILE.svg]], with {LAST} to {MOST} steps")
}

pub fn help() -> String {
    format!(
        "Trains a small transformer of characters twice, with BF16 linear layers and with FP8 ones, from the same weights on the same\n\
         text, prints the loss of both at the end (the mean of the last {LAST} steps, in nats a character), and draws both curves.\n\n\
         {}\n\n  \
         --device    where linear layers are; without it on the GPU where one of sm_90 answers, else on the CPU\n  \
         STEPS       steps of each training, {STEPS} without it\n  \
         FILE.svg    the drawing, {FILE} without it; its folder must exist",
        usage()
    )
}

/// What is wrong with a word, in front of the usage.
pub fn asked(words: impl IntoIterator<Item = OsString>) -> Result<Asked, String> {
    let words: Vec<_> = words.into_iter().collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(Asked::Help);
    }
    parsed(words.into_iter()).map_err(|wrong| format!("{wrong}\n{}", usage()))
}

fn parsed(mut words: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let (mut device, mut steps, mut path) = (None, None, None);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        match text.split_once('=') {
            _ if text == "--device" => {
                let next = words.next().ok_or("--device: cpu or cuda must follow")?;
                device = Some(next.to_string_lossy().into_owned());
            }
            Some(("--device", name)) => device = Some(name.into()),
            _ if text.starts_with('-') => return Err(format!("{text}: is no option")),
            _ if steps.is_none() => steps = Some(count(&text)?),
            _ if path.is_none() => path = Some(PathBuf::from(word)),
            _ => return Err(format!("{text}: is one word too many")),
        }
    }
    Ok(Asked::Training { device, steps: steps.unwrap_or(STEPS), path: path.unwrap_or_else(|| FILE.into()) })
}

fn count(text: &str) -> Result<usize, String> {
    let steps = text.parse().ok().filter(|steps| (LAST..=MOST).contains(steps));
    steps.ok_or_else(|| format!("STEPS: {text:?} must be a whole number from {LAST} to {MOST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<Asked, String> {
        asked(words.split_whitespace().map(OsString::from))
    }

    #[test]
    fn help_is_no_error() {
        for words in ["--help", "-h", "10 --help", "20 x.svg -h", "--device cpu --help"] {
            assert_eq!(of(words), Ok(Asked::Help), "{words}");
        }
        let help = help();
        for word in ["BF16", "FP8", &usage(), "--device", "STEPS", "200", "train_char.svg", "last 10 steps"] {
            assert!(help.contains(word), "{word}: {help}");
        }
    }

    #[test]
    fn options_stand_anywhere() {
        let training = |device: Option<&str>, steps, path: &str| {
            Ok(Asked::Training { device: device.map(String::from), steps, path: path.into() })
        };
        assert_eq!(of(""), training(None, 200, "train_char.svg"));
        assert_eq!(of("--device cpu 20 x.svg"), training(Some("cpu"), 20, "x.svg"));
        assert_eq!(of("20 --device=cuda x.svg"), training(Some("cuda"), 20, "x.svg"));
        assert_eq!(of("1000000 x.svg --device cpu"), training(Some("cpu"), 1_000_000, "x.svg"));
    }

    #[test]
    fn wrong_words_are_named() {
        for (words, wrong) in [
            ("many", "STEPS: \"many\" must be a whole number from 10 to 1000000"),
            ("9", "STEPS: \"9\" must be"),
            ("1000001", "STEPS: \"1000001\" must be"),
            ("18446744073709551616", "STEPS: \"18446744073709551616\" must be"),
            ("20 x.svg more", "more: is one word too many"),
            ("--steps 20", "--steps: is no option"),
            ("20 --foo", "--foo: is no option"),
            ("-1", "-1: is no option"),
            ("10 --device", "--device: cpu or cuda must follow"),
        ] {
            let text = of(words).unwrap_err();
            assert!(text.starts_with(wrong) && text.ends_with(&usage()), "{words}: {text}");
        }
    }
}
