//! How much memory a large header takes. Alone in its program: the kernel keeps one peak for each process.

use std::fs;
use std::io::Write;

use scaled_gemm::checkpoint::Checkpoint;

/// The largest memory this process had so far, in bytes; `None` where the kernel does not say.
fn peak() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
}

/// The text, every tensor name once more, and the fields of each: four times the text, not fifteen.
#[test]
fn a_header_of_40_megabytes_takes_a_few_times_its_size() {
    let path = std::env::temp_dir().join(format!("scaled-gemm-header-{}", std::process::id()));
    let mut header = String::from("{");
    let mut tensors = 0;
    while header.len() < 40_000_000 {
        let entry = r#"{"dtype":"BF16","shape":[0,7168],"data_offsets":[0,0]},"#;
        header += &format!("\"model.layers.{tensors}.mlp.experts.down_proj.weight\":{entry}");
        tensors += 1;
    }
    header.pop();
    header.push('}');
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let len = header.len();
    drop((header, file));

    let before = peak();
    let opened = Checkpoint::open(&path);
    let after = peak();
    fs::remove_file(&path).unwrap();
    let opened = opened.unwrap();
    assert_eq!(opened.tensors().len(), tensors);
    assert!(opened.get("model.layers.77.mlp.experts.down_proj.weight").is_some_and(|t| t.shape == [0, 7168]));
    assert!(opened.get("model.layers.77").is_none());
    match (before, after) {
        // The text of the test was freed before, so that its peak may hide as much.
        (Some(before), Some(after)) => {
            let used = after - before + len;
            println!("{len} bytes of header took {used}");
            assert!(used < 5 * len, "{len} bytes of header took {used}");
        }
        _ => println!("skipped: this system does not tell the peak"),
    }
}
