alias key_t = u32;
const LAST = 0xffffffffu;

fn key_less(a: key_t, b: key_t) -> bool {
  return a < b;
}
