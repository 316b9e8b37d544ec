// Lists of the API come page by page; this collects them.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "../api.ts";
import { Button } from "./basics.tsx";

export interface Paged<T> {
  items: T[];
  total?: number;
  /** The whole last page, for what stands beside the list. */
  page?: Record<string, unknown>;
  error?: Error;
  loading: boolean;
  /** Undefined when the last page is there. */
  more?: () => void;
  reload: () => void;
}

/** `member` is the name of the list in the answer. An address of `null` loads nothing. */
export function usePaged<T>(address: string | null, member: string, filters: Record<string, string | undefined> = {}, limit = 100): Paged<T> {
  const key = address === null ? null : `${address}${query({ ...filters, limit })}`;
  const [state, setState] = useState<{ key: string | null; items: T[]; total?: number; page?: Record<string, unknown>; next?: string; error?: Error; loading: boolean }>({ key: null, items: [], loading: true });
  const [turn, setTurn] = useState(0);
  const abort = useRef<AbortController | undefined>(undefined);
  const load = async (cursor: string | undefined) => {
    const own = new AbortController();
    abort.current?.abort();
    abort.current = own;
    setState((before) => ({ ...before, key, items: before.key === key ? before.items : [], error: undefined, loading: true, next: undefined }));
    try {
      const page = await get<Record<string, unknown>>(`${address}${query({ ...filters, limit, cursor })}`, own.signal);
      if (own.signal.aborted) return;
      const items = page[member] as T[];
      setState((before) => ({
        key,
        page,
        items: cursor && before.key === key ? [...before.items, ...items] : items,
        total: page.total as number | undefined,
        next: page.next_cursor as string | undefined,
        loading: false,
      }));
    } catch (error) {
      if (!own.signal.aborted) setState((before) => ({ ...before, key, next: cursor, error: error as Error, loading: false }));
    }
  };
  useEffect(() => {
    if (key === null) return;
    load(undefined);
    return () => abort.current?.abort();
  }, [key, turn]);
  const fits = state.key === key;
  return {
    items: fits ? state.items : [],
    total: fits ? state.total : undefined,
    page: fits ? state.page : undefined,
    error: fits ? state.error : undefined,
    loading: !fits || state.loading,
    more: fits && state.next !== undefined && !state.loading ? () => load(state.next) : undefined,
    reload: () => setTurn((value) => value + 1),
  };
}

export function More({ list }: { list: Paged<unknown> }) {
  if (list.loading && list.items.length) return <p class="loading" role="status">Loading more…</p>;
  return list.more ? <Button onClick={list.more}>Show more</Button> : null;
}
