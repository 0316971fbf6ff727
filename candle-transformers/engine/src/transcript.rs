//! Transcripts as lines of text: with times, and as subtitles.

use candle_transformers::models::whisper::transcribe::Segment;

/// `[00:00:00.000 --> 00:00:02.500] text`, and each word on a line below if words have times.
pub fn timed(segment: &Segment) -> String {
    let line = |indent: &str, start, end, text: &str| {
        let (start, end) = (clock(start, '.'), clock(end, '.'));
        format!("{indent}[{start} --> {end}] {}\n", text.trim())
    };
    let words = segment.words.iter();
    let words = words.map(|word| line("  ", word.start, word.end, &word.text));
    line("", segment.start, segment.end, &segment.text) + &words.collect::<String>()
}

/// One subtitle of SubRip, with its number from 1.
pub fn subtitle(number: usize, segment: &Segment) -> String {
    let (start, end) = (clock(segment.start, ','), clock(segment.end, ','));
    format!("{number}\n{start} --> {end}\n{}\n\n", segment.text.trim())
}

/// The beginning of a file of WebVTT.
pub const WEBVTT: &str = "WEBVTT\n\n";

/// One subtitle of WebVTT, which follows [`WEBVTT`].
pub fn webvtt(segment: &Segment) -> String {
    let (start, end) = (clock(segment.start, '.'), clock(segment.end, '.'));
    format!("{start} --> {end}\n{}\n\n", segment.text.trim())
}

/// Hours, minutes, seconds, `point` and thousandths.
fn clock(seconds: f64, point: char) -> String {
    let thousandths = (seconds * 1000.).round() as u64;
    let (seconds, thousandths) = (thousandths / 1000, thousandths % 1000);
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{thousandths:03}")
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn clocks() {
        assert_eq!(clock(0., '.'), "00:00:00.000");
        assert_eq!(clock(59.9996, ','), "00:01:00,000");
        assert_eq!(clock(3723.045, ','), "01:02:03,045");
    }
}
