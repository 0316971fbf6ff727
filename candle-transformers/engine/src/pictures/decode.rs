//! From the bytes of a file to pixels, of images that may be anybody's.

use super::Picture;
use crate::error::one_line;
use crate::{Error, Result};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::{Cursor, Read};
use std::path::Path;

/// The most bytes of an image's file.
pub const MAX_BYTES: u64 = 20 << 20;
/// The most pixels of an image: a file of few bytes can have very many.
pub const MAX_PIXELS: u64 = 40_000_000;
/// Bytes that a decoder may take beside the pixels.
const ALLOWANCE: u64 = 64 << 20;

/// The image in a file, PNG or JPEG.
///
/// # Errors
/// A file that cannot be read or is larger than [`MAX_BYTES`]; as [`read_picture`].
pub fn open_picture(file: &Path) -> Result<Picture> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|err| Error::file(file, err))?;
    read_picture(&bytes, &file.display().to_string())
}

/// The image in the bytes of a PNG or JPEG file, turned as it says; transparency is left out. `name` is what it is called in messages.
///
/// # Errors
/// More than [`MAX_BYTES`] or [`MAX_PIXELS`], another format, or damage.
pub fn read_picture(bytes: &[u8], name: &str) -> Result<Picture> {
    let failed = |problem: String| Error::File {
        file: name.to_string(),
        problem,
    };
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(format!(
            "more than {MAX_BYTES} bytes; expected a smaller image"
        )));
    }
    let wrong = |err: &dyn std::fmt::Display| failed(one_line(&err.to_string()));
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|err| wrong(&err))?;
    match reader.format() {
        Some(ImageFormat::Png | ImageFormat::Jpeg) => {}
        Some(other) => {
            let name = format!("{other:?}").to_uppercase();
            return Err(failed(format!("a {name} image; expected PNG or JPEG")));
        }
        None => return Err(failed("not an image; expected PNG or JPEG".to_string())),
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(8 * MAX_PIXELS + ALLOWANCE);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|err| wrong(&err))?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS {
        return Err(failed(format!(
            "{width} x {height} pixels; expected at most {MAX_PIXELS} pixels: scale it down"
        )));
    }
    let turned = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder);
    let mut image = image.map_err(|err| wrong(&err))?;
    image.apply_orientation(turned);
    let rgb = image.into_rgb8();
    let (width, height) = (rgb.width() as usize, rgb.height() as usize);
    Picture::new(width, height, rgb.into_raw()).map_err(|err| wrong(&err))
}
