// What pages load and listen to. A page is shown at once and filled as answers come.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, events, send, type StreamEvent } from "./api.ts";

export interface Loaded<T> {
  data?: T;
  error?: Error;
  loading: boolean;
  reload: () => void;
}

/** Loads when `key` changes; what was there stays until the new answer comes. A key of `null` loads nothing. */
export function useLoad<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; data?: T; error?: Error; loading: boolean }>({ key: null, loading: key !== null });
  const [turn, setTurn] = useState(0);
  const current = useRef(load);
  current.current = load;
  useEffect(() => {
    if (key === null) return;
    const abort = new AbortController();
    setState((before) => ({ key, data: before.key === key ? before.data : undefined, loading: true }));
    current.current(abort.signal).then(
      (data) => abort.signal.aborted || setState({ key, data, loading: false }),
      (error: Error) => abort.signal.aborted || setState((before) => ({ key, data: before.data, error, loading: false })),
    );
    return () => abort.abort();
  }, [key, turn]);
  const fits = state.key === key;
  return { data: fits ? state.data : undefined, error: fits ? state.error : undefined, loading: !fits || state.loading, reload: () => setTurn((value) => value + 1) };
}

export type Liveness = "connecting" | "live" | "lost";

const LONGEST_PAUSE = 15_000;

/** Listens to a stream of events for as long as the component is shown; connects again after a break. */
export function useStream(address: string | null, heard: (event: StreamEvent) => void): Liveness {
  const [state, setState] = useState<Liveness>("connecting");
  const listener = useRef(heard);
  listener.current = heard;
  useEffect(() => {
    if (address === null) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let pause = 500;
    const listen = async () => {
      try {
        const answer = await send(address, { signal: abort.signal, headers: { Accept: "text/event-stream" } });
        setState("live");
        pause = 500;
        for await (const event of events(answer)) if (!abort.signal.aborted) listener.current(event);
      } catch (error) {
        // A refusal stays one; only broken connections are tried again.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
          if (!abort.signal.aborted) setState("lost");
          return;
        }
      }
      if (abort.signal.aborted) return;
      setState("lost");
      timer = setTimeout(listen, pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    };
    setState("connecting");
    listen();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [address]);
  return state;
}

/** The value as it was when it last rested for a moment: for filters that ask the server. */
export function useSettled<T>(value: T, delay = 250): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), delay);
    return () => clearTimeout(timer);
  }, [value, delay]);
  return settled;
}
