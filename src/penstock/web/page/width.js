// How wide an element is, and when that changes.

import { useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";

export function useWidth() {
  const place = useRef(null);
  const [width, setWidth] = useState(document.documentElement.clientWidth);
  useLayoutEffect(() => {
    if (!place.current) return undefined;
    const watch = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    watch.observe(place.current);
    return () => watch.disconnect();
  }, [place.current === null]);
  return [place, width];
}
