//! [`Scratch`]: a folder for the files of a case, and what lies around it and must not be touched.

use std::fs;
use std::path::{Path, PathBuf};

use scaled_gemm::checkpoint::Checkpoint;

/// The name of a tensor that no case may see.
const OUTSIDE: &str = "outside the folder";

/// `around/outside.safetensors`, which nothing may read, and `around/case`, which cases fill.
pub struct Scratch {
    around: PathBuf,
}

impl Scratch {
    /// In memory, where the system has a place for that.
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let around = base.join(format!("scaled-gemm-fuzz-{}", std::process::id()));
        fs::create_dir_all(around.join("case")).unwrap();
        let header = format!(r#"{{"{OUTSIDE}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(around.join("outside.safetensors"), bytes).unwrap();
        Self { around }
    }

    pub fn case(&self) -> PathBuf {
        self.around.join("case")
    }

    /// A folder that a case may write.
    pub fn out(&self) -> PathBuf {
        self.around.join("out")
    }

    /// The case without files.
    pub fn clear(&self) {
        for entry in fs::read_dir(self.case()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let _ = fs::remove_dir_all(self.out());
    }

    /// Every file of a checkpoint of the case is a file of its folder, under a plain name.
    pub fn check_read(&self, file: &Checkpoint) {
        for path in file.files() {
            assert_eq!(path.parent(), Some(self.case().as_path()), "{path:?} is read");
            assert!(path.file_name().is_some() && path.is_file(), "{path:?} is read");
            assert_eq!(path.canonicalize().unwrap().parent(), Some(self.case().canonicalize().unwrap().as_path()));
        }
        assert!(file.get(OUTSIDE).is_none());
    }

    /// Nothing was made beside the folders of the case, and in `out` what a checkpoint is made of.
    pub fn check_written(&self) {
        for name in names(&self.around) {
            assert!(["case", "out", "outside.safetensors"].contains(&name.as_str()), "{name:?} was made");
        }
        if self.out().exists() {
            for name in names(&self.out()) {
                let known = name == "model.safetensors.index.json"
                    || (name.starts_with("model") && name.ends_with(".safetensors") && name.len() <= 32);
                assert!(known, "{name:?} was made");
            }
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
