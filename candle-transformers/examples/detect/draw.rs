//! Boxes, lines and letters in an image. What is outside the image is left out.

use image::{Rgb, RgbImage};

/// Rows and columns of a letter.
const ROWS: u32 = 7;
const COLUMNS: u32 = 5;

/// An image, and how thick lines are in it.
pub struct Canvas<'a> {
    picture: &'a mut RgbImage,
    pen: u32,
}

impl<'a> Canvas<'a> {
    /// Lines are as thick as suits the image.
    pub fn new(picture: &'a mut RgbImage) -> Self {
        let pen = picture.width().max(picture.height()).div_ceil(400);
        Self { picture, pen }
    }

    /// Fills a rectangle, whose last column and row belong to it.
    fn fill(&mut self, [x, y]: [i64; 2], [last_x, last_y]: [i64; 2], color: Rgb<u8>) {
        let (w, h) = self.picture.dimensions();
        for y in y.max(0)..=last_y.min(i64::from(h) - 1) {
            for x in x.max(0)..=last_x.min(i64::from(w) - 1) {
                // Within the image, by the bounds above.
                self.picture.put_pixel(x as u32, y as u32, color);
            }
        }
    }

    /// A square around a point.
    fn dab(&mut self, [x, y]: [f32; 2], side: u32, color: Rgb<u8>) {
        let (x, y, side) = (x.round() as i64, y.round() as i64, i64::from(side));
        let first = [x - side / 2, y - side / 2];
        self.fill(first, first.map(|at| at + side - 1), color);
    }

    /// The edges of a box, inside of it.
    pub fn frame(&mut self, [x0, y0]: [f32; 2], [x1, y1]: [f32; 2], color: Rgb<u8>) {
        let [x0, y0, x1, y1] = [x0, y0, x1, y1].map(|at| at.round() as i64);
        let wide = i64::from(self.pen) - 1;
        self.fill([x0, y0], [x1, y0 + wide], color);
        self.fill([x0, y1 - wide], [x1, y1], color);
        self.fill([x0, y0], [x0 + wide, y1], color);
        self.fill([x1 - wide, y0], [x1, y1], color);
    }

    /// A line between points of the image.
    pub fn line(&mut self, from: [f32; 2], to: [f32; 2], color: Rgb<u8>) {
        let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
        let steps = dx.abs().max(dy.abs()).ceil().max(1.);
        for step in 0..=steps as u32 {
            let share = step as f32 / steps;
            let at = [from[0] + share * dx, from[1] + share * dy];
            self.dab(at, self.pen, color);
        }
    }

    pub fn point(&mut self, at: [f32; 2], color: Rgb<u8>) {
        self.dab(at, 3 * self.pen, color);
    }

    /// Black letters on `color`, above a box whose first corner is at `at`, or in it where there is no room.
    pub fn label(&mut self, text: &str, at: [f32; 2], color: Rgb<u8>) {
        let dot = i64::from(self.pen);
        let [x, y] = at.map(|at| at.round() as i64);
        let height = dot * i64::from(ROWS + 2);
        let top = if y >= height { y - height } else { y };
        let letters = text.chars().count() as i64;
        let width = dot * (letters * i64::from(COLUMNS + 1) + 1);
        self.fill([x, top], [x + width - 1, top + height - 1], color);
        for (i, letter) in text.chars().enumerate() {
            let left = x + dot * (1 + i as i64 * i64::from(COLUMNS + 1));
            for (row, bits) in glyph(letter).into_iter().enumerate() {
                for column in (0..COLUMNS).filter(|column| bits >> (COLUMNS - 1 - column) & 1 == 1)
                {
                    let first = [left + dot * i64::from(column), top + dot * (1 + row as i64)];
                    self.fill(first, first.map(|at| at + dot - 1), Rgb([0; 3]));
                }
            }
        }
    }
}

/// A bright color for each number, those of neighbours far apart.
pub fn color(number: usize) -> Rgb<u8> {
    // The golden ratio leaves no two numbers near each other on the circle.
    let hue = (number as f32 * 0.618_034).fract() * 6.;
    Rgb([5., 3., 1.].map(|shift: f32| {
        let at = (shift + hue) % 6.;
        let dark = at.min(4. - at).clamp(0., 1.);
        (255. * (1. - 0.8 * dark)) as u8
    }))
}

/// The rows of a letter, the first column in the highest of five bits.
fn glyph(letter: char) -> [u8; ROWS as usize] {
    match letter.to_ascii_lowercase() {
        'a' => [
            0b01110, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001,
        ],
        'b' => [
            0b11110, 0b10001, 0b10001, 0b11110, 0b10001, 0b10001, 0b11110,
        ],
        'c' => [
            0b01110, 0b10001, 0b10000, 0b10000, 0b10000, 0b10001, 0b01110,
        ],
        'd' => [
            0b11110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b11110,
        ],
        'e' => [
            0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b11111,
        ],
        'f' => [
            0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b10000,
        ],
        'g' => [
            0b01110, 0b10001, 0b10000, 0b10111, 0b10001, 0b10001, 0b01111,
        ],
        'h' => [
            0b10001, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001,
        ],
        'i' => [
            0b01110, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110,
        ],
        'j' => [
            0b00111, 0b00010, 0b00010, 0b00010, 0b00010, 0b10010, 0b01100,
        ],
        'k' => [
            0b10001, 0b10010, 0b10100, 0b11000, 0b10100, 0b10010, 0b10001,
        ],
        'l' => [
            0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b11111,
        ],
        'm' => [
            0b10001, 0b11011, 0b10101, 0b10101, 0b10001, 0b10001, 0b10001,
        ],
        'n' => [
            0b10001, 0b11001, 0b10101, 0b10011, 0b10001, 0b10001, 0b10001,
        ],
        'o' => [
            0b01110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110,
        ],
        'p' => [
            0b11110, 0b10001, 0b10001, 0b11110, 0b10000, 0b10000, 0b10000,
        ],
        'q' => [
            0b01110, 0b10001, 0b10001, 0b10001, 0b10101, 0b10010, 0b01101,
        ],
        'r' => [
            0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001,
        ],
        's' => [
            0b01111, 0b10000, 0b10000, 0b01110, 0b00001, 0b00001, 0b11110,
        ],
        't' => [
            0b11111, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100,
        ],
        'u' => [
            0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110,
        ],
        'v' => [
            0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01010, 0b00100,
        ],
        'w' => [
            0b10001, 0b10001, 0b10001, 0b10101, 0b10101, 0b11011, 0b10001,
        ],
        'x' => [
            0b10001, 0b10001, 0b01010, 0b00100, 0b01010, 0b10001, 0b10001,
        ],
        'y' => [
            0b10001, 0b10001, 0b01010, 0b00100, 0b00100, 0b00100, 0b00100,
        ],
        'z' => [
            0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b10000, 0b11111,
        ],
        '0' => [
            0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110,
        ],
        '1' => [
            0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110,
        ],
        '2' => [
            0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111,
        ],
        '3' => [
            0b11110, 0b00001, 0b00001, 0b01110, 0b00001, 0b00001, 0b11110,
        ],
        '4' => [
            0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010,
        ],
        '5' => [
            0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110,
        ],
        '6' => [
            0b01110, 0b10000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110,
        ],
        '7' => [
            0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000,
        ],
        '8' => [
            0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110,
        ],
        '9' => [
            0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00001, 0b01110,
        ],
        '%' => [
            0b11000, 0b11001, 0b00010, 0b00100, 0b01000, 0b10011, 0b00011,
        ],
        _ => [0; ROWS as usize],
    }
}
