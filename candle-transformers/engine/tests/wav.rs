//! WAV files of any form.

/// The sample format of a WAV file.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Whole(u16),
    Float,
}

impl Form {
    fn bits(self) -> u16 {
        match self {
            Self::Whole(bits) => bits,
            Self::Float => 32,
        }
    }

    fn write(self, value: f64, into: &mut Vec<u8>) {
        match self {
            Self::Float => into.extend((value as f32).to_le_bytes()),
            // Eight bits have no sign in this format.
            Self::Whole(8) => into.push((value * 128. + 128.).round() as u8),
            Self::Whole(bits) => {
                let one = 2f64.powi(i32::from(bits) - 1);
                let bytes = ((value * one).round() as i32).to_le_bytes();
                into.extend(&bytes[..usize::from(bits / 8)]);
            }
        }
    }
}

/// A WAV file of these frames, each with a value for each of `channels`.
pub fn wav(form: Form, rate: u32, channels: u16, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let mut data = Vec::new();
    values
        .into_iter()
        .for_each(|value| form.write(value, &mut data));
    let align = channels * form.bits() / 8;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(match form {
        Form::Whole(_) => 1u16.to_le_bytes(),
        Form::Float => 3u16.to_le_bytes(),
    });
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(align)).to_le_bytes());
    file.extend(align.to_le_bytes());
    file.extend(form.bits().to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}
