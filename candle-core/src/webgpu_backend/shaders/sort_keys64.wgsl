// The low word first.
alias key_t = vec2<u32>;
const LAST = vec2<u32>(0xffffffffu, 0xffffffffu);

fn key_less(a: key_t, b: key_t) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}
