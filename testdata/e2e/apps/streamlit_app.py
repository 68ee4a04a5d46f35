"""A Streamlit application: a counter and a file to send. Both go by its WebSocket and its upload endpoint."""

import streamlit as st

st.title("Counter")
st.session_state.setdefault("count", 0)
if st.button("Add one"):
    st.session_state.count += 1
st.write(f"The count is {st.session_state.count}.")
st.line_chart({"squares": [n * n for n in range(10)]})
sent = st.file_uploader("A file")
if sent:
    st.write(f"{sent.name} has {len(sent.getvalue())} bytes.")
