//! The text to learn: sentences of a few words, made here, so that nothing is downloaded.

use scaled_gemm::reference::Noise;

const ADJECTIVES: [&str; 8] = ["small", "red", "quiet", "old", "warm", "green", "brave", "hungry"];
const NOUNS: [&str; 8] = ["cat", "river", "robot", "farmer", "cloud", "dog", "painter", "wolf"];
const VERBS: [&str; 6] = ["sees", "follows", "paints", "hears", "greets", "finds"];

/// Text as numbers, each the place of a character in the alphabet.
pub struct Text {
    symbols: Vec<usize>,
    alphabet: Vec<char>,
}

impl Text {
    /// So many sentences.
    pub fn new(sentences: usize) -> Self {
        let mut noise = Noise::new(7);
        let mut word = |words: &[&'static str]| words[noise.below(words.len())];
        let text: String = (0..sentences)
            .map(|_| {
                let [adjective, noun, verb] = [word(&ADJECTIVES), word(&NOUNS), word(&VERBS)];
                format!("the {adjective} {noun} {verb} a {} {}. ", word(&ADJECTIVES), word(&NOUNS))
            })
            .collect();
        let alphabet: Vec<char> = text.chars().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let symbols = text.chars().filter_map(|c| alphabet.iter().position(|a| *a == c)).collect();
        Self { symbols, alphabet }
    }

    /// How many characters there are to choose from.
    pub fn alphabet(&self) -> usize {
        self.alphabet.len()
    }

    /// What these numbers say.
    pub fn spell(&self, symbols: &[usize]) -> String {
        symbols.iter().filter_map(|s| self.alphabet.get(*s)).collect()
    }

    /// Stretches of `len` characters from random places, one after the other, and for each character the one that follows it.
    pub fn batch(&self, stretches: usize, len: usize, noise: &mut Noise) -> (Vec<usize>, Vec<usize>) {
        let starts: Vec<usize> = (0..stretches).map(|_| noise.below(self.symbols.len() - len)).collect();
        let from = |shift: usize| {
            starts.iter().flat_map(|start| &self.symbols[start + shift..start + shift + len]).copied().collect()
        };
        (from(0), from(1))
    }
}
