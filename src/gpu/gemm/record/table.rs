//! [`TuneTable`]: records of many problems in one JSON file, and which of them holds here.

use std::io::read_to_string;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::problem::ProblemRecord;
use super::{Environment, TuneRecord, VERSION, refused};
use crate::checkpoint::{OutputFile, open_regular};
use crate::error::{Error, Result};
use crate::gpu::gemm::desc::GemmDesc;

/// Records of many problems, possibly of several machines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TuneTable {
    records: Vec<TuneRecord>,
}

impl TuneTable {
    /// Adds a record, in place of the one for the same problem and environment if there is one.
    pub fn insert(&mut self, record: TuneRecord) {
        let same = |r: &TuneRecord| r.environment == record.environment && r.problem == record.problem;
        match self.records.iter().position(same) {
            Some(i) => self.records[i] = record,
            None => self.records.push(record),
        }
    }

    /// All records.
    pub fn records(&self) -> &[TuneRecord] {
        &self.records
    }

    /// The record for this problem in this environment.
    pub fn find(&self, here: &Environment, desc: &GemmDesc) -> Option<&TuneRecord> {
        if self.records.is_empty() {
            return None;
        }
        let problem = ProblemRecord::from(desc);
        let mut fitting =
            self.records.iter().filter(|r| r.version == VERSION && r.environment.admits(here) && r.problem == problem);
        let first = fitting.clone().next();
        fitting.find(|r| r.environment.driver == here.driver).or(first)
    }

    /// Why no record holds for this problem here, though one may be meant: that of another machine, or of a link of chains.
    pub(crate) fn passed_over(&self, here: &Environment, desc: &GemmDesc) -> Option<String> {
        if self.records.is_empty() || self.find(here, desc).is_some() {
            return None;
        }
        let problem = ProblemRecord::from(desc);
        if let Some(Err(Error::Record { reason, .. })) =
            self.records.iter().find(|r| r.problem == problem).map(|record| record.check(here, desc))
        {
            return Some(reason);
        }
        let of_link = !desc.chained && self.find(here, &desc.with_chained(true)).is_some();
        of_link.then(|| "of a link of chains, and this call is alone: `scaled-gemm tune` without --chained".into())
    }

    /// The table as JSON.
    ///
    /// # Errors
    /// [`Error::Record`] if a time is not a finite number.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| refused(format!("it cannot be written as JSON: {e}")))
    }

    /// A table from JSON. Records of other machines are kept; they are passed over when planning.
    ///
    /// # Errors
    /// [`Error::Record`] with the place and reason.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| refused(format!("not a table of records: {e}")))
    }

    /// Reads a table from a file.
    ///
    /// # Errors
    /// [`Error::File`] for what is no regular file (a pipe would be waited for); [`Error::Io`]; [`Error::Record`] with the
    /// file, place and reason.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = open_regular(path, "give a file that tune or TuneTable::save wrote")?;
        let text = read_to_string(file).map_err(|source| Error::Io { path: path.into(), source })?;
        Self::from_json(&text).map_err(|e| match e {
            Error::Record { reason, remedy } => {
                Error::Record { reason: format!("{}: {reason}", path.display()), remedy }
            }
            other => other,
        })
    }

    /// Writes the table to a file, which appears whole or not at all.
    ///
    /// # Errors
    /// As [`OutputFile::create`] and [`OutputFile::finish`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write((self.to_json()? + "\n").as_bytes())?;
        file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gemm::record::tests::{desc, environment, record};

    #[test]
    fn a_table_keeps_one_record_for_each_problem_and_machine() {
        let mut table = TuneTable::default();
        assert!(table.find(&environment(), &desc()).is_none());
        table.insert(record());
        table.insert(TuneRecord { measured_us: Some(10.0), ..record() });
        table.insert(TuneRecord { environment: Environment { sm_count: 78, ..environment() }, ..record() });
        assert_eq!(table.records().len(), 2);
        // Another driver's record holds until there is one of this driver.
        let newer = Environment { driver: 13010, ..environment() };
        record().check(&newer, &desc()).unwrap();
        assert_eq!(table.find(&newer, &desc()).unwrap().environment().driver, 13000);
        let mut both = table.clone();
        both.insert(TuneRecord { environment: newer.clone(), ..record() });
        assert_eq!((both.records().len(), both.find(&newer, &desc()).unwrap().environment()), (3, &newer));
        let found = table.find(&environment(), &desc()).unwrap();
        assert_eq!(found.measured_us(), Some(10.0));
        assert!(table.find(&environment(), &GemmDesc { m: 1, ..desc() }).is_none());
        for other in [desc().with_batch_invariant(true), desc().with_chained(true)] {
            assert!(table.find(&environment(), &other).is_none());
        }
        assert_eq!(TuneTable::from_json(&table.to_json().unwrap()).unwrap(), table);

        let file = std::env::temp_dir().join(format!("scaled-gemm-tune-{}.json", std::process::id()));
        table.save(&file).unwrap();
        assert_eq!(TuneTable::load(&file).unwrap(), table);
        std::fs::write(&file, "[]").unwrap();
        assert!(TuneTable::load(&file).unwrap_err().to_string().contains("scaled-gemm-tune"));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(TuneTable::load(&file), Err(Error::Io { .. })));
    }

    #[test]
    fn what_is_passed_over_is_told_where_it_may_be_meant() {
        let of = |records: &[TuneRecord], here: &Environment, desc: &GemmDesc| {
            let mut table = TuneTable::default();
            records.iter().for_each(|record| table.insert(record.clone()));
            table.passed_over(here, desc)
        };
        let [alone, link] = [false, true].map(|chained| desc().with_chained(chained));
        let of_link = TuneRecord { problem: ProblemRecord::from(&link), ..record() };
        let elsewhere = Environment { sm_count: 78, ..environment() };
        assert_eq!(of(&[], &environment(), &alone), None);
        assert_eq!(of(&[record()], &environment(), &alone), None, "it holds");
        assert_eq!(of(&[record(), of_link.clone()], &environment(), &alone), None, "one of them holds");
        assert_eq!(of(&[record()], &environment(), &GemmDesc { m: 1, ..alone }), None, "of another problem");
        assert_eq!(
            of(&[record()], &environment(), &link),
            None,
            "a record of a call alone, which take_tuned asks for, too"
        );
        let told = |records: &[TuneRecord], here: &Environment| of(records, here, &alone).unwrap();
        let text = told(&[record()], &elsewhere);
        assert!(text.contains("132") && text.contains("78"), "{text}");
        assert!(told(std::slice::from_ref(&of_link), &environment()).contains("without --chained"));
        assert!(told(&[of_link, record()], &elsewhere).contains("132"));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, what) in [(pipe.as_path(), "a pipe"), (folder.path(), "a folder")] {
            let error = TuneTable::load(path).unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("give a file that tune"), "{text}");
        }
    }
}
