//! When each word is spoken, read from where the decoder looks.

use candle_core::{IndexOp, Result, Tensor};

use super::vocabulary::{Special, Vocabulary};
use super::window::probability;
use super::Word;
use crate::models::reading::Reading;
use crate::models::whisper::parts::TextDecoder;

/// Positions over which weights are smoothed by their median.
const MEDIAN: usize = 7;
/// Seconds of a position of the sound.
const POSITION: f64 = 0.02;
/// Languages that are written without spaces between words.
const UNSPACED: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Stand at the front of the next word.
const OPENING: &str = "\"'“¿([{-";
/// Stand at the end of the word before.
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";

/// The inputs of an alignment.
pub(super) struct Alignment<'a> {
    pub(super) special: &'a Special,
    pub(super) vocabulary: &'a dyn Vocabulary,
    /// The heads that attend to the sound of the current token, (layer, head); without any, all of the later half of the layers.
    pub(super) heads: &'a [(usize, usize)],
    /// The tokens before a text.
    pub(super) prompt: &'a [u32],
    pub(super) language: Option<&'a str>,
}

impl Alignment<'_> {
    /// The words of `text`, tokens without times, which was said in the first `positions` positions of the sound; in seconds from its start.
    pub(super) async fn words(
        &self,
        text: &[u32],
        sound: &Tensor,
        positions: usize,
        decoder: &mut TextDecoder,
        reading: Reading,
    ) -> Result<Vec<Word>> {
        if text.is_empty() || positions == 0 {
            return Ok(Vec::new());
        }
        let mut tokens = self.prompt.to_vec();
        tokens.push(self.special.no_timestamps);
        let first = tokens.len() - 1;
        tokens.extend(text);
        tokens.push(self.special.end);
        let ids = Tensor::from_slice(&tokens, (1, tokens.len()), sound.device())?;
        let (hidden, layers) = decoder.forward_with_attention(&ids, sound)?;
        let logits = decoder.final_linear(&hidden.narrow(1, first, text.len())?)?;
        let logits = reading.matrix(&logits.i(0)?).await?;
        // Among words alone.
        let words = |row: &Vec<f32>| row[..row.len().min(self.special.end as usize)].to_vec();
        let probabilities = logits.iter().zip(text);
        let probabilities: Vec<_> = probabilities
            .map(|(row, token)| probability(&words(row), *token))
            .collect();

        let mut looks = Looks::new(tokens.len(), positions);
        for (layer, weights) in layers.iter().enumerate() {
            let heads = reading.matrices(&weights.i(0)?).await?;
            for (head, weights) in heads.into_iter().enumerate() {
                if self.is_used(layer, head, layers.len()) {
                    looks.add(weights);
                }
            }
        }
        // A row for what comes before the text's first token, and for each of its tokens.
        let starts = path(&looks.mean[first..first + text.len() + 1], positions);
        let mut at = 0;
        let pieces = self.pieces(text)?.into_iter().map(|(piece, len)| {
            let range = at..at + len;
            at = range.end;
            let sum: f64 = probabilities[range.clone()].iter().sum();
            Word {
                text: piece,
                start: starts[range.start] as f64 * POSITION,
                end: starts[range.end] as f64 * POSITION,
                probability: sum / len as f64,
            }
        });
        Ok(with_punctuation(pieces.collect()))
    }

    fn is_used(&self, layer: usize, head: usize, layers: usize) -> bool {
        match self.heads {
            [] => layer >= layers / 2,
            heads => heads.contains(&(layer, head)),
        }
    }

    /// Words as the language writes them, with the number of tokens of each.
    fn pieces(&self, text: &[u32]) -> Result<Vec<(String, usize)>> {
        let mut pieces: Vec<(String, usize)> = Vec::new();
        let mut start = 0;
        for end in 1..=text.len() {
            let piece = self.vocabulary.text(&text[start..end])?;
            // Half of a character: the other half is in the next token.
            if piece.contains(char::REPLACEMENT_CHARACTER) && end < text.len() {
                continue;
            }
            let unspaced = self.language.is_some_and(|l| UNSPACED.contains(&l));
            let is_punctuation = piece.trim().chars().all(|c| c.is_ascii_punctuation());
            match pieces.last_mut() {
                Some((word, len)) if !(unspaced || piece.starts_with(' ') || is_punctuation) => {
                    word.push_str(&piece);
                    *len += end - start;
                }
                _ => pieces.push((piece, end - start)),
            }
            start = end;
        }
        Ok(pieces)
    }
}

/// Gives punctuation to the word that it belongs to.
fn with_punctuation(words: Vec<Word>) -> Vec<Word> {
    let only = |word: &Word, of: &str| {
        let text = word.text.trim();
        !text.is_empty() && text.chars().all(|c| of.contains(c))
    };
    let mut joined: Vec<Word> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(last) if only(last, OPENING) && last.text.starts_with(' ') => {
                last.text.push_str(&word.text);
                last.end = word.end;
                last.probability = word.probability;
            }
            Some(last) if only(&word, CLOSING) && !word.text.starts_with(' ') => {
                last.text.push_str(&word.text);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// The attention weights of tokens, as the mean over heads.
struct Looks {
    mean: Vec<Vec<f64>>,
}

impl Looks {
    fn new(tokens: usize, positions: usize) -> Self {
        Self {
            mean: vec![vec![0.; positions]; tokens],
        }
    }

    /// Adds a head's weights, each position's scaled to mean 0 and variance 1 over the tokens, smoothed over positions.
    fn add(&mut self, weights: Vec<Vec<f32>>) {
        let positions = self.mean.first().map_or(0, Vec::len);
        let row = |row: &Vec<f32>| -> Vec<f64> {
            let row = &row[..positions.min(row.len())];
            let sum: f64 = row.iter().map(|w| f64::from(*w)).sum();
            row.iter().map(|w| f64::from(*w) / sum.max(1e-30)).collect()
        };
        let mut rows: Vec<Vec<f64>> = weights.iter().map(row).collect();
        let count = rows.len().max(1) as f64;
        let width = rows.iter().map(Vec::len).min().unwrap_or(0);
        for at in 0..width {
            let mean = rows.iter().map(|row| row[at]).sum::<f64>() / count;
            let variance = rows.iter().map(|row| (row[at] - mean).powi(2)).sum::<f64>() / count;
            let deviation = variance.sqrt().max(1e-30);
            for row in &mut rows {
                row[at] = (row[at] - mean) / deviation;
            }
        }
        for (sum, row) in self.mean.iter_mut().zip(&rows) {
            for (at, sum) in sum.iter_mut().enumerate().take(width) {
                *sum += median_around(row, at);
            }
        }
    }
}

/// The median of the [`MEDIAN`] neighbours of a position, mirrored at the ends.
fn median_around(row: &[f64], at: usize) -> f64 {
    let half = MEDIAN / 2;
    if row.len() <= half {
        return row[at];
    }
    let mut near = [0f64; MEDIAN];
    for (i, value) in near.iter_mut().enumerate() {
        let place = (at + i).abs_diff(half);
        let last = row.len() - 1;
        *value = row[if place > last {
            2 * last - place
        } else {
            place
        }];
    }
    near.sort_by(f64::total_cmp);
    near[half]
}

/// The position at which each row begins on the way through `scores`, from the first row and position to the last, that sums up to the most;
/// a step goes to the next row, the next position, or both. One more than there are rows: the end of the last.
fn path(scores: &[Vec<f64>], positions: usize) -> Vec<usize> {
    let rows = scores.len();
    // What a way to here costs at least, and where it comes from.
    let mut cost = vec![vec![f64::INFINITY; positions + 1]; rows + 1];
    let mut from = vec![vec![0u8; positions + 1]; rows + 1];
    cost[0][0] = 0.;
    for row in 1..=rows {
        for at in 1..=positions {
            let both = cost[row - 1][at - 1];
            let down = cost[row - 1][at];
            let along = cost[row][at - 1];
            let (least, way) = match (both < down && both < along, down < both && down < along) {
                (true, _) => (both, 0),
                (_, true) => (down, 1),
                _ => (along, 2),
            };
            cost[row][at] = least - scores[row - 1][at - 1];
            from[row][at] = way;
        }
    }
    let mut starts = vec![positions; rows + 1];
    let (mut row, mut at) = (rows, positions);
    while row > 0 && at > 0 {
        starts[row - 1] = at - 1;
        match from[row][at] {
            0 => (row, at) = (row - 1, at - 1),
            1 => row -= 1,
            _ => at -= 1,
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_the_scores() {
        let row = |from: usize, to: usize| -> Vec<f64> {
            (0..9)
                .map(|at| if (from..to).contains(&at) { 1. } else { -0.5 })
                .collect()
        };
        let scores = [row(0, 2), row(2, 3), row(3, 7), row(7, 9)];
        assert_eq!(path(&scores, 9), [0, 2, 3, 7, 9]);
        assert_eq!(path(&scores[..1], 9), [0, 9]);
        // More rows than positions.
        assert_eq!(path(&[vec![1.], vec![1.], vec![1.]], 1), [0, 0, 0, 1]);
    }

    #[test]
    fn medians() {
        let row = [0., 0., 9., 0., 0., 1., 1., 1., 1.];
        let all: Vec<_> = (0..row.len()).map(|at| median_around(&row, at)).collect();
        assert_eq!(all, [0., 0., 0., 0., 1., 1., 1., 1., 1.]);
        assert_eq!(median_around(&[5., 6.], 1), 6.);
    }

    #[test]
    fn punctuation_goes_to_its_word() {
        let word = |text: &str| Word {
            text: text.to_string(),
            start: 0.,
            end: 1.,
            probability: 1.,
        };
        let words = [" \"", "Hello", ",", " world", "!", "\""].map(word);
        let joined = with_punctuation(words.to_vec());
        let texts: Vec<_> = joined.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, [" \"Hello,", " world!\""]);
    }
}
