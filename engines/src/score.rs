//! How well a model foretells a text, and how far that is from another model.

use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;

use crate::Outcome;
use crate::llama::{AtInput, Llama};

/// Log-probabilities of every word at every place but the last, for each window.
pub struct Logs(Vec<Tensor>);

/// A model's losses over all windows, and its mean distance to the model that it is measured against.
pub struct Score {
    losses: Vec<f64>,
    kl: f64,
}

/// A model in full: what others are measured against.
///
/// # Errors
/// What candle refuses.
pub fn logs(model: &Llama, windows: &[Vec<u32>]) -> Outcome<Logs> {
    Ok(Logs(windows.iter().map(|window| log_probabilities(model, window, &mut |_, x| Ok(x))).collect::<Outcome<_>>()?))
}

fn log_probabilities(model: &Llama, window: &[u32], at_input: &mut AtInput) -> Outcome<Tensor> {
    let logits = model.forward(window, at_input)?.narrow(0, 0, window.len() - 1)?;
    // candle adds up the vocabulary's exponentials one by one, which in F32 costs 0.02 % of perplexity.
    Ok(log_softmax(&logits.to_dtype(DType::F64)?, D::Minus1)?.to_dtype(DType::F32)?)
}

fn losses(logs: &Tensor, window: &[u32]) -> Outcome<Vec<f64>> {
    let next = Tensor::new(&window[1..], logs.device())?.unsqueeze(1)?;
    let found = logs.gather(&next, 1)?.squeeze(1)?.to_vec1::<f32>()?;
    Ok(found.into_iter().map(|log| -f64::from(log)).collect())
}

impl Logs {
    /// The score of the model itself.
    ///
    /// # Errors
    /// What candle refuses.
    pub fn score(&self, windows: &[Vec<u32>]) -> Outcome<Score> {
        let mut all = Vec::new();
        for (logs, window) in self.0.iter().zip(windows) {
            all.extend(losses(logs, window)?);
        }
        Ok(Score { losses: all, kl: 0.0 })
    }

    /// The score of another model, whose linear layers get what `at_input` makes of their inputs.
    ///
    /// # Errors
    /// What candle refuses.
    pub fn compare(&self, model: &Llama, windows: &[Vec<u32>], at_input: &mut AtInput) -> Outcome<Score> {
        let (mut all, mut kl, mut places) = (Vec::new(), 0.0, 0);
        for (reference, window) in self.0.iter().zip(windows) {
            let logs = log_probabilities(model, window, at_input)?;
            all.extend(losses(&logs, window)?);
            let distance = (reference.exp()? * (reference - &logs)?)?.sum(1)?.to_vec1::<f32>()?;
            kl += distance.iter().map(|d| f64::from(*d)).sum::<f64>();
            places += distance.len();
        }
        Ok(Score { losses: all, kl: kl / places as f64 })
    }
}

impl Score {
    /// Places that are scored.
    pub fn places(&self) -> usize {
        self.losses.len()
    }

    /// `exp` of the mean loss.
    pub fn perplexity(&self) -> f64 {
        mean(&self.losses).exp()
    }

    /// How much larger the perplexity is than `base`'s, in percent.
    pub fn percent(&self, base: &Score) -> f64 {
        100.0 * mean(&self.changes(base)).exp_m1()
    }

    /// The standard error of the mean of paired differences, in percent: of the text alone.
    pub fn percent_error(&self, base: &Score) -> f64 {
        let changes = self.changes(base);
        let middle = mean(&changes);
        let sum: f64 = changes.iter().map(|c| (c - middle) * (c - middle)).sum();
        let count = changes.len() as f64;
        100.0 * (sum / (count - 1.0) / count).sqrt()
    }

    /// Mean Kullback-Leibler distance from the reference, in nats.
    pub fn kl(&self) -> f64 {
        self.kl
    }

    fn changes(&self, base: &Score) -> Vec<f64> {
        self.losses.iter().zip(&base.losses).map(|(loss, base)| loss - base).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
