//! From the tokens of a stage to those of the text and of each codebook.

use std::cmp::Ordering;

/// For the second stage, which generates all codebooks in parallel.
pub struct TiltedEncodec {
    end_of_audio_token: u32,
}

impl TiltedEncodec {
    /// Tokens of sound are below `end_of_audio_token`, those of text above.
    pub fn new(end_of_audio_token: u32) -> Self {
        Self { end_of_audio_token }
    }

    /// The text among the first of the codebooks `tokens`, and the sound of each, cut to the length of the shortest.
    pub fn decode(&self, tokens: &[Vec<u32>]) -> (Vec<u32>, Vec<Vec<u32>>) {
        let is = |order| move |token: &u32| token.cmp(&self.end_of_audio_token) == order;
        let only = |book: &Vec<u32>, order| book.iter().copied().filter(is(order)).collect();
        let text = tokens
            .first()
            .map_or_else(Vec::new, |book| only(book, Ordering::Greater));
        let mut sound: Vec<Vec<u32>> = tokens
            .iter()
            .map(|book| only(book, Ordering::Less))
            .collect();
        let frames = sound.iter().map(Vec::len).min().unwrap_or(0);
        sound.iter_mut().for_each(|book| book.truncate(frames));
        (text, sound)
    }
}

/// For the first stage, which generates two interleaved codebooks.
pub struct FlattenedInterleavedEncodec2Codebook {
    end_of_audio_token: u32,
}

impl FlattenedInterleavedEncodec2Codebook {
    /// Each codebook has `end_of_audio_token` tokens, the first from 0 on, the second after it; those of text come behind both.
    pub fn new(end_of_audio_token: u32) -> Self {
        Self { end_of_audio_token }
    }

    /// The text among `tokens`, and the sound of the first and of the second codebook, both from 0 on.
    pub fn decode(&self, tokens: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let size = self.end_of_audio_token;
        let (mut text, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        for &token in tokens {
            match token.checked_sub(size) {
                None => first.push(token),
                Some(of_second) if of_second < size => second.push(of_second),
                Some(_) => text.push(token),
            }
        }
        (text, first, second)
    }
}
