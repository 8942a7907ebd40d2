//! How many tokens a provider can count for what is sent, at most. Takes blocks and bytes, gives upper bounds:
//! a budget that reserves this much before a request is never exceeded by it.
//!
//! Text is bounded by its bytes, since no tokenizer makes two tokens of one byte. Media are charged by what they
//! show, not by their bytes: images by pixels, PDFs by pages.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use decurion_protocol::{Block, Message, ToolContent};
use serde_json::Value;

use crate::{Dialect, WireHead, WireMessage};

/// What the media of a message weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaWeight {
    /// Bytes of the message that are encoded media, and cost nothing as text.
    pub bytes: u64,
    /// The most tokens that they are charged as.
    pub tokens: u64,
}

/// The most tokens that Anthropic charges for an image: larger ones are scaled down first.
const MOST_PER_IMAGE: u64 = 5_000;
/// The same for Chat Completions servers; local ones take an image as it is, up to this.
const MOST_PER_CHAT_IMAGE: u64 = 16_384;
/// The side of the square of pixels that is one token.
const PATCH: u64 = 28;
/// What Anthropic's documentation divides the pixels by.
const PIXELS_PER_TOKEN: u64 = 750;
/// A page of a PDF is its picture and its text.
const MOST_PER_PAGE: u64 = 8_000;
/// More pages than this are refused.
const MOST_PAGES: u64 = 600;
/// Bytes of a page at least, where a PDF does not show how many it has.
const LEAST_PAGE_BYTES: u64 = 1_024;
/// `gpt-4o-mini` counts an image as this many times the tokens that other models count.
const MINI_FACTOR: u64 = 34;
/// How much of an encoded file is decoded to find its size; that of a JPEG can stand behind a colour profile.
const HEADER_BYTES: usize = 256 * 1024;

impl WireMessage {
    /// The most tokens that this message can be counted as by a model.
    pub fn most_tokens(&self, model: &str) -> u64 {
        let factor = if model.contains("4o-mini") { MINI_FACTOR } else { 1 };
        let text = (self.bytes.len() as u64).saturating_sub(self.media.bytes);
        text.saturating_add(self.media.tokens.saturating_mul(factor))
    }
}

impl WireHead {
    /// The most tokens that this head can be counted as.
    pub fn most_tokens(&self) -> u64 {
        (self.prefix.len() + self.suffix.len()) as u64
    }
}

/// What the media of a message weigh in a dialect.
pub(crate) fn media(dialect: Dialect, message: &Message) -> MediaWeight {
    let mut media = MediaWeight::default();
    for block in &message.blocks {
        media.add(dialect, block);
    }
    media
}

impl MediaWeight {
    fn add(&mut self, dialect: Dialect, block: &Block) {
        match block {
            Block::ToolResult { content: ToolContent::Blocks(blocks), .. } => {
                for block in blocks {
                    self.add(dialect, block);
                }
            }
            Block::Image { source } => {
                self.bytes += data(source).map_or(0, |data| data.len() as u64);
                self.tokens += image_tokens(dialect, source);
            }
            // Chat Completions gets a remark in its place.
            Block::Document { source } if dialect == Dialect::Anthropic => {
                self.bytes += data(source).map_or(0, |data| data.len() as u64);
                self.tokens += document_tokens(source);
            }
            _ => {}
        }
    }
}

/// The encoded bytes of a source that carries them.
fn data(source: &Value) -> Option<&str> {
    let is = |kind: &str| source.get("type").and_then(Value::as_str) == Some(kind);
    source.get("data").and_then(Value::as_str).filter(|_| is("base64"))
}

fn image_tokens(dialect: Dialect, source: &Value) -> u64 {
    let most = match dialect {
        Dialect::Anthropic => MOST_PER_IMAGE,
        Dialect::OpenAiChat => MOST_PER_CHAT_IMAGE,
    };
    let Some((width, height)) = data(source).and_then(|data| dimensions(&decode(data))) else { return most };
    let by_patch = width.div_ceil(PATCH).saturating_mul(height.div_ceil(PATCH));
    let by_area = width.saturating_mul(height).div_ceil(PIXELS_PER_TOKEN);
    let counted = match dialect {
        Dialect::Anthropic => by_patch.max(by_area),
        Dialect::OpenAiChat => by_patch.saturating_mul(5).div_ceil(2).max(tile_tokens(width, height)),
    };
    counted.min(most)
}

/// As OpenAI counts: tiles of 512 pixels, after scaling to at most 768 on the short side, plus a base.
fn tile_tokens(width: u64, height: u64) -> u64 {
    let tiles = width.min(2_048).div_ceil(512) * height.min(2_048).div_ceil(512);
    85 + 170 * tiles.min(8)
}

fn document_tokens(source: &Value) -> u64 {
    if source.get("type").and_then(Value::as_str) == Some("text") {
        // Its bytes are counted with those of the message.
        return 0;
    }
    let pages = data(source).map_or(MOST_PAGES, |data| {
        let unseen = data.len() as u64 / LEAST_PAGE_BYTES + 1;
        seen_pages(&decode_all(data)).unwrap_or(unseen)
    });
    pages.min(MOST_PAGES) * MOST_PER_PAGE
}

/// How many pages a PDF shows to a reader that does not unpack it; none where they are all packed.
fn seen_pages(pdf: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(pdf);
    let named = text.match_indices("/Type").filter(|(at, found)| {
        let rest = text[at + found.len()..].trim_start();
        rest.strip_prefix("/Page").is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    });
    // A tree of pages says how many it holds, and packed pages may stand beside those that are not.
    let counted = text.match_indices("/Count").filter_map(|(at, found)| {
        let rest = text[at + found.len()..].trim_start();
        let end = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse::<u64>().ok()
    });
    let packed = text.contains("/ObjStm");
    let counted = counted.max();
    let named = named.count() as u64;
    match (packed, counted, named) {
        (true, None, _) | (_, None, 0) => None,
        (_, counted, named) => Some(named.max(counted.unwrap_or(0)).max(1)),
    }
}

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The beginning of encoded data; empty if it cannot be decoded.
fn decode(data: &str) -> Vec<u8> {
    let end = data.len().min(HEADER_BYTES) / 4 * 4;
    let end = if data.len() <= HEADER_BYTES { data.len() } else { end };
    LENIENT.decode(data.as_bytes().get(..end).unwrap_or_default()).unwrap_or_default()
}

fn decode_all(data: &str) -> Vec<u8> {
    LENIENT.decode(data).unwrap_or_default()
}

/// Width and height of a PNG, GIF, JPEG or WebP.
fn dimensions(file: &[u8]) -> Option<(u64, u64)> {
    let big = |at: usize| Some(u64::from(u16::from_be_bytes([*file.get(at)?, *file.get(at + 1)?])));
    let little = |at: usize| Some(u64::from(u16::from_le_bytes([*file.get(at)?, *file.get(at + 1)?])));
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        let four = |at: usize| Some((big(at)? << 16) | big(at + 2)?);
        return Some((four(16)?, four(20)?));
    }
    if file.starts_with(b"GIF8") {
        return Some((little(6)?, little(8)?));
    }
    if file.starts_with(b"\xff\xd8") {
        return jpeg_dimensions(file);
    }
    if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP") {
        let three = |at: usize| Some(little(at)? | (u64::from(*file.get(at + 2)?) << 16));
        return match file.get(12..16)? {
            b"VP8 " => Some((little(26)? & 0x3fff, little(28)? & 0x3fff)),
            b"VP8X" => Some((three(24)? + 1, three(27)? + 1)),
            b"VP8L" => {
                let bits = little(21)? | (little(23)? << 16);
                Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
            }
            _ => None,
        };
    }
    None
}

/// From segment to segment until the frame header.
fn jpeg_dimensions(file: &[u8]) -> Option<(u64, u64)> {
    let big = |at: usize| Some(u16::from_be_bytes([*file.get(at)?, *file.get(at + 1)?]));
    let mut at = 2;
    loop {
        if *file.get(at)? != 0xff {
            return None;
        }
        let marker = *file.get(at + 1)?;
        match marker {
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((u64::from(big(at + 7)?), u64::from(big(at + 5)?)));
            }
            _ => at += 2 + usize::from(big(at + 2)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    fn encoded(bytes: &[u8]) -> Value {
        json!({"type": "base64", "media_type": "image/png", "data": BASE64_STANDARD.encode(bytes)})
    }

    fn png(width: u32, height: u32, padding: usize) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        file.extend(width.to_be_bytes());
        file.extend(height.to_be_bytes());
        file.extend(vec![0; padding]);
        file
    }

    #[test]
    fn images_weigh_by_pixels_and_at_most_what_a_scaled_one_costs() {
        let jpeg = [
            &b"\xff\xd8\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"[..],
            b"\xff\xc0\x00\x11\x08\x01\x00\x02\x00\x03",
        ]
        .concat();
        let gif = b"GIF89a\x2c\x01\xc8\x00";
        let webp = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\x03\0\xff\x01\0";
        let rows = [
            (png(28, 28, 0), Some((28, 28)), 2),
            (png(1_000, 1_000, 2_000_000), Some((1_000, 1_000)), 1_334),
            (png(20_000, 20_000, 9), Some((20_000, 20_000)), MOST_PER_IMAGE),
            (jpeg, Some((512, 256)), 190),
            (gif.to_vec(), Some((300, 200)), 88),
            (webp.to_vec(), Some((1024, 512)), 703),
            (b"no picture".to_vec(), None, MOST_PER_IMAGE),
            (png(1, 1, 0)[..18].to_vec(), None, MOST_PER_IMAGE),
        ];
        for (file, size, tokens) in rows {
            assert_eq!(dimensions(&file), size);
            assert_eq!(image_tokens(Dialect::Anthropic, &encoded(&file)), tokens, "{size:?}");
            assert!(image_tokens(Dialect::OpenAiChat, &encoded(&file)) >= tokens.min(85));
        }
    }

    #[test]
    fn documents_weigh_by_pages() {
        let page = "<< /Type /Page /Parent 1 0 R >>\n";
        let plain = format!("%PDF-1.4\n<< /Type /Pages /Count 3 >>\n{}", page.repeat(3));
        let packed = "%PDF-1.7\n<< /Type /ObjStm /N 9 >>".to_owned() + &" ".repeat(4_000);
        let packed_and_counted = "%PDF-1.7\n<< /Type/ObjStm >> << /Type/Pages/Count 12>>";
        let weigh = |file: &str| document_tokens(&encoded(file.as_bytes()));
        assert_eq!(weigh(&plain), 3 * MOST_PER_PAGE);
        assert_eq!(weigh(&packed), 6 * MOST_PER_PAGE);
        assert_eq!(weigh(packed_and_counted), 12 * MOST_PER_PAGE);
        assert_eq!(document_tokens(&json!({"type": "url", "url": "x"})), MOST_PAGES * MOST_PER_PAGE);
        assert_eq!(document_tokens(&json!({"type": "text", "data": "x"})), 0);
    }

    #[test]
    fn text_weighs_its_bytes_and_media_are_not_text() {
        let image = Block::Image { source: encoded(&png(280, 280, 3_000_000)) };
        let result = Block::ToolResult {
            id: decurion_protocol::CallId("c".to_owned()),
            content: ToolContent::Blocks(vec![image.clone()]),
            is_error: false,
        };
        let user = |blocks| Message { role: decurion_protocol::Role::User, blocks };
        for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
            let text = dialect.message(&user(vec![Block::text("日本語 🎉")]));
            assert_eq!(text.most_tokens("m"), text.bytes.len() as u64);
            let with_image = dialect.message(&user(vec![result.clone(), image.clone()]));
            assert!(with_image.bytes.len() > 6_000_000);
            let most = with_image.most_tokens("m");
            assert!((200..1_500).contains(&most), "{dialect:?}: {most}");
        }
    }
}
